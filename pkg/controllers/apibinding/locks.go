package apibinding

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
)

const (
	// locksAnnotation says on a LogicalCluster which binding has which resource, as JSON:
	// {"<resource>.<group>": {"n": "<binding>"}}.
	locksAnnotation = "internal.apis.kcp.io/resource-bindings"
	// maxLocksBytes bounds it: some 2,000 resources. All annotations of an object may have
	// 256 KiB.
	maxLocksBytes = 128 << 10
)

// errTooMany says that a logical cluster has bound as many resources as it can.
var errTooMany = errors.New("too many resources are bound in the logical cluster")

// withLocks returns a LogicalCluster that says what a binding has bound, or nil if it
// says so already.
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

// turns has the bindings of a logical cluster write into its LogicalCluster one after the
// other: a new one has several at a time, of which all but the first would be refused and
// start anew. Some logical clusters share a turn, which is short. The zero value is ready to
// use.
type turns [64]sync.Mutex

// lock waits for the turn of a logical cluster, which ends when done is called.
func (t *turns) lock(cluster logicalcluster.Name) (done func()) {
	h := fnv.New32a()
	_, _ = h.Write([]byte(cluster))
	turn := &t[h.Sum32()%uint32(len(t))]
	turn.Lock()
	return turn.Unlock
}
