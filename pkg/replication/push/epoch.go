package push

import (
	"strings"

	"github.com/google/uuid"
)

// epochs makes the epochs of a shard's marks. It is the latest that one of them has had.
type epochs string

// next returns the epoch of the mark that comes after one of the epoch found, which is empty if there is none.
// It is a UUID of version 7, which contains its time, so that readers can order two epochs: the latest that marks of
// the shard have had, or a later one if the shard has older data than its mark.
func (e *epochs) next(found string, setBack bool) string {
	latest := max(string(*e), found)
	switch {
	case latest == "":
		latest = newEpoch()
	case setBack && latest == found:
		latest = newEpochAfter(found)
	}
	*e = epochs(latest)
	return latest
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
