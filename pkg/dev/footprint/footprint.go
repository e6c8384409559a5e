// Package footprint keeps the processes of a development cluster small, of which
// there are many on one machine and most are idle.
//
// A process of this program has some 70 MiB of the program itself mapped once
// it has started, most of which only the start needs, and garbage of the start
// on its heap. Release gives both back. Of the program, more comes back in time
// than is used, because the kernel maps the surroundings of each page that is
// touched; Keep gives it back from time to time.
package footprint

import (
	"context"
	"runtime/debug"
	"time"
)

// releases are the times after its start at which a process may have become
// idle: soon, and once more when the last of its caches have filled.
var releases = []time.Duration{2 * time.Second, 5 * time.Second, 20 * time.Second}

// programEvery is how often the program's own pages are given back afterwards.
const programEvery = time.Minute

// Release gives memory back to the system that only the start needed. It costs
// one garbage collection and some page faults.
func Release() error {
	debug.FreeOSMemory()
	return releaseProgram()
}

// Keep keeps this process small until ctx ends: it calls Release when the start
// should be over, and gives the program's pages back every minute.
func Keep(ctx context.Context) error {
	start := time.Now()
	for _, after := range releases {
		if !sleep(ctx, time.Until(start.Add(after))) {
			return nil
		}
		if err := Release(); err != nil {
			return err
		}
	}
	for sleep(ctx, programEvery) {
		if err := releaseProgram(); err != nil {
			return err
		}
	}
	return nil
}

// sleep returns false when ctx ends before the time is over.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
