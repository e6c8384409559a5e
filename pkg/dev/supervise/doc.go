// Package supervise runs the processes of a development cluster: it starts
// them together, waits until each answers that it is ready, restarts with
// growing pauses what dies, and stops them in the reverse order of their
// stages.
//
// No process outlives its supervisor, however that ends:
//
//	ordered stop        SIGTERM, and SIGKILL to the process group of what does not end in time
//	supervisor killed   on Linux the kernel kills each process (parent-death signal);
//	                    everywhere each process finds its lifeline cut (see Lifeline)
//
// Each process is the leader of its own process group, so that the Ctrl-C of a
// terminal reaches the supervisor alone and the order of the stop is its own.
package supervise
