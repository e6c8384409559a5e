package supervise

import "syscall"

// sysProcAttr puts a process into its own group, and makes the kernel kill it when the supervisor dies. SIGKILL
// releases its ports and data immediately for the next start; components survive crashes anyway.
func sysProcAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
