package history

import (
	"hash/fnv"
	"slices"
	"strings"
)

// Range is a range of hashes, including Last.
type Range struct{ First, Last uint64 }

// Scope is the selection of a list or watch. The zero value selects everything.
type Scope struct {
	Shard, Cluster, Namespace string
	// Label selects objects with this value of the label.
	Label string
	// By is the hashed field, by default the UID.
	By By
	// Ranges select by hash. If empty, all hashes are selected.
	Ranges []Range
	// withoutSystem excludes system logical clusters, as the front-proxy does.
	withoutSystem bool
}

// By is the name of the hashed field in selectors.
type By string

// The hashed fields.
const (
	ByUID       By = ""
	ByNamespace By = "namespace"
	ByCluster   By = "cluster"
)

// selection is the part of a Domain that a client observes.
type selection interface {
	mayContain(k Key) bool
	Selects(k Key, s State) bool
}

// unfiltered reports whether the scope returns each event of an object unchanged.
func (s Scope) unfiltered() bool { return s.Label == "" }

// Selective reports whether the scope selects less than a collection.
func (s Scope) Selective() bool { return s.Label != "" || len(s.Ranges) > 0 }

// mayContain reports whether objects with the key can be in the scope.
func (s Scope) mayContain(k Key) bool {
	return (s.Shard == "" || s.Shard == k.Shard) && (s.Cluster == "" || s.Cluster == k.Cluster) &&
		(s.Namespace == "" || s.Namespace == k.Namespace) && (!s.withoutSystem || !strings.HasPrefix(k.Cluster, "system:"))
}

// Selects reports whether a state of the object with the key is in the scope.
func (s Scope) Selects(k Key, state State) bool {
	if !s.mayContain(k) || state.Deleted || (s.Label != "" && s.Label != state.Label) {
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
	return slices.ContainsFunc(s.Ranges, func(r Range) bool { return r.First <= sum && sum <= r.Last })
}
