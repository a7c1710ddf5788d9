"""How does a whole model take a step in C++? The sources, and the door to what they become."""
