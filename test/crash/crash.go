// Package crash simulates processes that end at one of their writes, for tests of controllers.
package crash

import "errors"

// Err is the error of writes at the end of the process, and of later ones.
var Err = errors.New("the process ends here")

// Process is a process that ends at a write. The zero value never ends. It is not safe for concurrent use.
type Process struct {
	// At is the number of the write at which the process ends, from 1; 0 for never.
	At int
	// Lost is set if the last write takes effect, and only its response is lost.
	Lost bool
	// Calls is the number of writes so far, including failed ones.
	Calls int
}

// Point returns a process that ends before the n-th write for the point 2n, and after it for 2n+1.
func Point(point int) Process { return Process{At: point / 2, Lost: point%2 == 1} }

// Write calls do, unless the process has ended.
func (p *Process) Write(do func()) error {
	p.Calls++
	if !p.Ended() || p.Calls == p.At && p.Lost {
		do()
	}
	if p.Ended() {
		return Err
	}
	return nil
}

// Ended reports whether the process has ended.
func (p *Process) Ended() bool { return p.At > 0 && p.Calls >= p.At }

// Restart continues with a new process if this one has ended. The new one does not end.
func (p *Process) Restart() {
	if p.Ended() {
		p.At = 0
	}
}
