package apibinding

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"

	"github.com/shardplane/shardplane/pkg/client"
)

const (
	// locksAnnotation is the APIBinding of each bound resource, as JSON: {"<resource>.<group>": {"n":
	// "<binding>"}}.
	//
	//reference:metadata LogicalCluster | APIBinding controller
	locksAnnotation = "internal.apis.kcp.io/resource-bindings"
	// maxLocksBytes allows about 2,000 resources. The limit for all annotations of an object is 256 KiB.
	//
	//reference:limit cluster | bound resources, in an annotation for about 2,000 of them | condition `BindingUpToDate` of the APIBinding
	maxLocksBytes = 128 << 10
)

// errTooMany is returned if the annotation would be too large.
var errTooMany = errors.New("too many resources are bound in the logical cluster")

// withLocks records the resources of a binding in a LogicalCluster. It returns nil if they are already recorded.
func withLocks(lc *corev1alpha1.LogicalCluster, binding string, resources []apisv1alpha2.BoundAPIResource) (*corev1alpha1.LogicalCluster, error) {
	type lock struct {
		Name string `json:"n,omitempty"`
	}
	locks, others := map[string]lock{}, map[string]json.RawMessage{}
	before := lc.Annotations[locksAnnotation]
	if before != "" {
		if err := json.Unmarshal([]byte(before), &others); err != nil {
			return nil, fmt.Errorf("annotation %s of the LogicalCluster: %w", locksAnnotation, err)
		}
	}
	for resource, text := range others {
		var l lock
		if err := json.Unmarshal(text, &l); err == nil && l.Name == binding {
			delete(others, resource)
		}
	}
	for i := range resources {
		locks[resources[i].Resource+"."+resources[i].Group] = lock{binding}
	}
	for resource, l := range locks {
		text, err := json.Marshal(l)
		if err != nil {
			return nil, fmt.Errorf("encoding the lock of %s: %w", resource, err)
		}
		others[resource] = text
	}
	after := ""
	if len(others) > 0 {
		text, err := json.Marshal(others)
		if err != nil {
			return nil, fmt.Errorf("encoding the annotation %s: %w", locksAnnotation, err)
		}
		after = string(text)
	}
	if after == before {
		return nil, nil //nolint:nilnil // there is nothing to change
	}
	if len(after) > max(maxLocksBytes, len(before)) {
		return nil, errTooMany
	}
	lc = lc.DeepCopy()
	if after == "" {
		delete(lc.Annotations, locksAnnotation)
		return lc, nil
	}
	if lc.Annotations == nil {
		lc.Annotations = map[string]string{}
	}
	lc.Annotations[locksAnnotation] = after
	return lc, nil
}

// clusterLocks serializes the writes of bindings to their LogicalCluster: a new one gets several bindings at once, and all
// but one of the writes would fail with a conflict. Logical clusters share a fixed number of locks. The zero value is ready
// to use.
type clusterLocks [64]sync.Mutex

// lock acquires the lock of a logical cluster, which done releases.
func (t *clusterLocks) lock(cluster logicalcluster.Name) (done func()) {
	h := fnv.New32a()
	_, _ = h.Write([]byte(cluster))
	turn := &t[h.Sum32()%uint32(len(t))]
	turn.Lock()
	return turn.Unlock
}

// waiting are bindings that wait for names or for capacity for schemas.
type waiting struct {
	mu  sync.Mutex
	all map[logicalcluster.Name]map[client.Key]bool
}

func (w *waiting) set(key client.Key, waits bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	of := w.all[key.Cluster]
	switch {
	case waits && of == nil:
		w.all[key.Cluster] = map[client.Key]bool{key: true}
	case waits:
		of[key] = true
	default:
		delete(of, key)
		if len(of) == 0 {
			delete(w.all, key.Cluster)
		}
	}
}

func (w *waiting) in(cluster logicalcluster.Name) []client.Key {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Keys(w.all[cluster]))
}

func (w *waiting) everywhere() []client.Key {
	w.mu.Lock()
	defer w.mu.Unlock()
	var keys []client.Key
	for _, of := range w.all {
		keys = slices.AppendSeq(keys, maps.Keys(of))
	}
	return keys
}
