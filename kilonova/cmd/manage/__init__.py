"""The program kilonova-manage: a module for each group of commands."""
