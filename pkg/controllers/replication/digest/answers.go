package digest

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

const (
	// Path is where a cache server has the digests of a shard, below the path of that. The resource,
	// with its group, and the number of a bucket may follow.
	Path = "/digests"
	// Form is the version of what is hashed, and how. Digests of two forms cannot be compared.
	Form = 1
)

// Number is a hash or a sum of hashes, in hexadecimal.
type Number uint64

// String returns the number in hexadecimal.
func (n Number) String() string { return strconv.FormatUint(uint64(n), 16) }

// MarshalText implements encoding.TextMarshaler.
func (n Number) MarshalText() ([]byte, error) { return strconv.AppendUint(nil, uint64(n), 16), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (n *Number) UnmarshalText(text []byte) error {
	value, err := strconv.ParseUint(string(text), 16, 64)
	if err != nil {
		return fmt.Errorf("a digest is a hexadecimal number of 64 bits, not %.20q", text)
	}
	*n = Number(value)
	return nil
}

// Answer is what a cache server says of the replicas of a shard: of all resources, of one, or of one
// bucket of it.
type Answer struct {
	// DataID is random. It is in the data of the cache server, and another one when that was lost and
	// made anew.
	DataID string `json:"dataID"`
	// Name is the one that the cache server has, and Date when it has answered, by its clock.
	Name string    `json:"name,omitempty"`
	Date time.Time `json:"-"`
	// Full says that its etcd is nearly full, so that it takes no new replicas.
	Full bool `json:"full,omitempty"`
	// Form is the version of what is hashed.
	Form int `json:"form"`
	// Resources has the roots of the resources that have replicas.
	Resources map[string]Root `json:"resources,omitempty"`
	// Buckets has the sums of a resource, of all buckets.
	Buckets []Number `json:"buckets,omitempty"`
	// Keys has the hashes of one bucket.
	Keys map[string]Number `json:"keys,omitempty"`
}

var (
	errNoID    = errors.New("the answer does not say which data it is about")
	errBuckets = fmt.Errorf("the answer has not %d buckets", Buckets)
)

// Check says what is wrong with an answer; of reports whether it is that of one resource.
func (a *Answer) Check(of bool) error {
	switch {
	case a.DataID == "":
		return errNoID
	case of && len(a.Buckets) != Buckets:
		return errBuckets
	}
	return nil
}

// Sums returns the sums of an answer that has some.
func (a *Answer) Sums() Sums {
	var s Sums
	for i := range min(len(a.Buckets), Buckets) {
		s[i] = uint64(a.Buckets[i])
	}
	return s
}
