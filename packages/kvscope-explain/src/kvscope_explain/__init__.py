"""Why requests took their time: the life of each, in the terminal and on the page of a study."""
