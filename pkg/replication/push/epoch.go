package push

import (
	"strings"

	"github.com/google/uuid"
)

// epochs generates the epochs of the shard's checkpoints. It contains the latest one.
type epochs string

// next returns the epoch of the checkpoint after one with the epoch found, which is empty if there is none. An epoch is
// a UUID of version 7, which contains the time, so that readers can order epochs. It changes if the shard has older data
// than its checkpoint.
func (e *epochs) next(found string, restoredFromOlder bool) string {
	latest := max(string(*e), found)
	switch {
	case latest == "":
		latest = newEpoch()
	case restoredFromOlder && latest == found:
		latest = newEpochAfter(found)
	}
	*e = epochs(latest)
	return latest
}

func newEpoch() string { return uuid.Must(uuid.NewV7()).String() }

// newEpochAfter returns a later epoch regardless of the clock, because the other one may come from a replica of the
// shard whose clock is ahead.
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
