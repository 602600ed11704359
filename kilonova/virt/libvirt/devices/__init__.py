"""Host devices as data: what there is, and what a guest is given. Only configurators know their XML."""
