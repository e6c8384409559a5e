package history

import (
	"hash/fnv"
	"strings"
)

// Range is a range of hashes, Last included.
type Range struct{ First, Last uint64 }

// Scope is what a list or watch selects. The zero value is everything.
type Scope struct {
	Shard, Cluster, Namespace string
	// Label selects objects with this value of the label.
	Label string
	// By is what is hashed; the uid by default.
	By By
	// Ranges select by hash; none selects all.
	Ranges []Range
	// tenants leaves out the logical clusters of the system, as the front-proxy does.
	tenants bool
}

// ofTenants is the scope without the logical clusters of the system.
func (s Scope) ofTenants() Scope {
	s.tenants = true
	return s
}

// By names what is hashed, as selectors do.
type By string

// What is hashed.
const (
	ByUID       By = ""
	ByNamespace By = "namespace"
	ByCluster   By = "cluster"
)

// selection is what of a Domain somebody sees.
type selection interface {
	holds(k Key) bool
	Selects(k Key, s State) bool
}

// whole reports whether the scope shows each event of an object as it is.
func (s Scope) whole() bool { return s.Label == "" }

// Selective reports whether the client asked for less than a collection.
func (s Scope) Selective() bool { return s.Label != "" || len(s.Ranges) > 0 }

// holds reports whether objects of the key may be in the scope.
func (s Scope) holds(k Key) bool {
	return (s.Shard == "" || s.Shard == k.Shard) && (s.Cluster == "" || s.Cluster == k.Cluster) &&
		(s.Namespace == "" || s.Namespace == k.Namespace) && (!s.tenants || !strings.HasPrefix(k.Cluster, "system:"))
}

// Selects reports whether a state of the object of a key is in the scope.
func (s Scope) Selects(k Key, state State) bool {
	if !s.holds(k) || state.Deleted || (s.Label != "" && s.Label != state.Label) {
		return false
	}
	if len(s.Ranges) == 0 {
		return true
	}
	hashed := state.UID
	switch s.By {
	case ByNamespace:
		hashed = k.Namespace
	case ByCluster:
		hashed = k.Cluster
	case ByUID:
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(hashed)) // never fails
	sum := h.Sum64()
	for _, r := range s.Ranges {
		if r.First <= sum && sum <= r.Last {
			return true
		}
	}
	return false
}
