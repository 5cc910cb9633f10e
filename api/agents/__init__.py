"""What agents are given: the service's answers as tools of the Model Context Protocol, and skills that use them."""
