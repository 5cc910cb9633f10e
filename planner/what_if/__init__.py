"""What if: a problem with a change, and what the change is worth. The command line, the service and `watch` ask here.

`change` is what may be asked for; `cluster_changes` and `profile_changes` carry it out; `device_loss` is what is left
of a problem and a plan without some devices; `sensitivity` asks about the resources that bind and prices them.
"""
