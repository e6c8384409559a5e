package supervise

import (
	"io"
	"os"
)

// lifelineEnv is set if the standard input of a process is its lifeline.
const lifelineEnv = "SHARDPLANE_LIFELINE"

// Lifeline returns a channel that is closed when the supervisor of this process has died, or nil without a
// supervisor. It must not be called twice.
//
// The lifeline is the standard input, a pipe to which the supervisor never writes. It ends with the supervisor.
func Lifeline() <-chan struct{} {
	if os.Getenv(lifelineEnv) == "" {
		return nil
	}
	cut := make(chan struct{})
	go func() { // runs until the process ends
		defer close(cut)
		_, _ = io.Copy(io.Discard, os.Stdin) // an error also means the end
	}()
	return cut
}
