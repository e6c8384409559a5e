// Package supervise runs the processes of a development cluster. It starts them concurrently, waits until each is
// ready, restarts those that exit with an increasing delay, and stops them in the reverse order of their stages.
//
// No process outlives its supervisor:
//
//	shutdown            SIGTERM, and SIGKILL to the process group if a process does not end in time
//	supervisor killed   on Linux the kernel kills each process (parent-death signal);
//	                    on other systems each process detects the end of its lifeline (see Lifeline)
//
// Each process is the leader of its own process group, so that Ctrl-C in a terminal reaches only the supervisor,
// which stops the processes in order.
package supervise
