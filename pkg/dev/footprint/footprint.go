// Package footprint keeps the processes of a development cluster small, of which
// there are many on one machine and most are idle.
//
// A process of this program has about 75 MiB of the program itself mapped once
// it has started, most of which only the start needs, and garbage of the start
// on its heap. Release gives both back.
package footprint

import (
	"context"
	"runtime/debug"
	"time"
)

// releases are the times after its start at which a process has become idle,
// if it has: soon, and once more when the last of its caches have filled.
var releases = []time.Duration{5 * time.Second, 20 * time.Second}

// Release gives memory back to the system that only the start needed. It costs
// one garbage collection and some page faults.
func Release() error {
	debug.FreeOSMemory()
	return releaseProgram()
}

// ReleaseAfterStart calls Release when the start of this process should be
// over, and returns after the last time, or when ctx ends.
func ReleaseAfterStart(ctx context.Context) error {
	start := time.Now()
	for _, after := range releases {
		timer := time.NewTimer(time.Until(start.Add(after)))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
		if err := Release(); err != nil {
			return err
		}
	}
	return nil
}
