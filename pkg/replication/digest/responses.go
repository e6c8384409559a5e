package digest

import (
	"errors"
	"fmt"
	"time"
)

const (
	// Path is the path of digests below that of a shard. It may be followed by a resource with its group, and by the
	// number of a bucket.
	Path = "/digests"
	// Form is the version of the hash. Digests of different forms cannot be compared.
	Form = 1
)

// Response contains digests of the replicas of a shard: of all resources, of one resource, or of one of its buckets.
type Response struct {
	// DataID is a random ID of the cache server's data. It changes if the data was lost.
	DataID string `json:"dataID"`
	// Name is the name of the cache server. Date is its time of the response.
	Name string    `json:"name,omitempty"`
	Date time.Time `json:"-"`
	// Full reports that the etcd is nearly full and no new replicas are accepted.
	Full bool `json:"full,omitempty"`
	// Form is the version of the hash.
	Form int `json:"form"`
	// Resources contains the roots of all resources with replicas.
	Resources map[string]Root `json:"resources,omitempty"`
	// Buckets contains the sums of all buckets of a resource.
	Buckets []Number `json:"buckets,omitempty"`
	// Keys contains the hashes of one bucket.
	Keys map[string]Number `json:"keys,omitempty"`
}

var (
	errNoID    = errors.New("the response has no dataID")
	errBuckets = fmt.Errorf("the response does not have %d buckets", Buckets)
)

// Check returns an error if the response is invalid. of is set for the response of a resource.
func (a *Response) Check(of bool) error {
	switch {
	case a.DataID == "":
		return errNoID
	case of && len(a.Buckets) != Buckets:
		return errBuckets
	}
	return nil
}

// Sums returns the sums of the buckets.
func (a *Response) Sums() Sums {
	var s Sums
	for i := range min(len(a.Buckets), Buckets) {
		s[i] = uint64(a.Buckets[i])
	}
	return s
}
