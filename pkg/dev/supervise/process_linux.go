package supervise

import "syscall"

// sysProcAttr puts a process into its own group, and has the kernel kill it
// when the supervisor dies. It is killed rather than terminated, so that its
// ports and data are free at once for whoever starts next; it must survive a
// crash anyway.
func sysProcAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
