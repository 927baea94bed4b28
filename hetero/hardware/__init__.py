"""What a machine is: cores, memory, instruction sets, accelerators, disk, versions."""
