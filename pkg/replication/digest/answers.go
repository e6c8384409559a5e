package digest

import (
	"errors"
	"fmt"
	"time"
)

const (
	// Path is where a cache server has the digests of a shard, below the path of that. The resource,
	// with its group, and the number of a bucket may follow.
	Path = "/digests"
	// Form is the version of what is hashed, and how. Digests of two forms cannot be compared.
	Form = 1
)

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
