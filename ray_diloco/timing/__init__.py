"""What time means: the machine's, or that of a simulated cluster.

profile        how fast a simulated machine and its link are
wall           wall time: lanes are threads
virtual        virtual time: the clock that the threads of one process share
virtual_port   a participant's port, whose thread drives its lanes (virtual_lane, step_times)
schedule       who may go on when, as pure data, over seats and the messages in claims
"""
