package supervise

import (
	"io"
	"os"
)

// lifelineEnv tells a process that its standard input is its lifeline.
const lifelineEnv = "SHARDPLANE_LIFELINE"

// Lifeline returns a channel that is closed when the supervisor of this
// process has died, and nil for a process without a supervisor. It may be
// called once.
//
// The lifeline is the standard input, a pipe whose other end the supervisor
// holds and never writes to: it ends when the supervisor does, whatever ends
// that.
func Lifeline() <-chan struct{} {
	if os.Getenv(lifelineEnv) == "" {
		return nil
	}
	cut := make(chan struct{})
	go func() { // lives as long as the process
		defer close(cut)
		_, _ = io.Copy(io.Discard, os.Stdin) // an error is an end, too
	}()
	return cut
}
