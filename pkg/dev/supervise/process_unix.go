//go:build unix && !linux

package supervise

import "syscall"

// sysProcAttr puts a process into its own group. Without a parent-death signal, the lifeline ends the process when
// the supervisor dies.
func sysProcAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
