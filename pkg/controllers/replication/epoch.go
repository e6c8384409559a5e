package replication

import (
	"strings"
	"sync"

	"github.com/google/uuid"
)

// epoch is that of a shard's marks, the same in all caches: readers that come from one to another
// tell by it whether versions can be compared. It is a UUID of version 7, which has its time, so that
// the later of two is known. The zero value has none yet.
type epoch struct {
	mu      sync.Mutex
	current string
}

// agree returns the epoch of the shard, which is the latest of those that its marks have had in any
// cache. found is that of a mark; empty where there is none.
func (e *epoch) agree(found string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.current == "" && found == "":
		e.current = newEpoch()
	case e.current == "", strings.Compare(found, e.current) > 0:
		e.current = found
	}
	return e.current
}

// renew starts another epoch, unless somebody has done so since it was before.
func (e *epoch) renew(before string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.current == "" || e.current == before {
		e.current = newEpochAfter(before)
	}
	return e.current
}

func newEpoch() string { return uuid.Must(uuid.NewV7()).String() }

// newEpochAfter returns an epoch that is later than another one, whatever the clock says: the other may have been
// made by a replica of the shard whose clock is ahead, or before this one's was set back.
func newEpochAfter(before string) string {
	next := uuid.Must(uuid.NewV7())
	last, err := uuid.Parse(before)
	if err != nil || strings.Compare(next.String(), before) > 0 {
		return next.String()
	}
	// The first 48 bits are milliseconds.
	for i, carry := 5, uint16(1); i >= 0; i-- {
		carry += uint16(last[i])
		next[i] = byte(carry)
		carry >>= 8
	}
	return next.String()
}
