//go:build unix && !linux

package supervise

import "syscall"

// sysProcAttr puts a process into its own group. There is no parent-death signal, only the lifeline.
func sysProcAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
