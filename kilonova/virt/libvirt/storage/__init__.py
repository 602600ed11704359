"""Files of servers: the image cache, disks, config drives, and their transfer to another host."""
