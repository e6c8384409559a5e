package apibinding

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/kcp-dev/logicalcluster/v3"
	apisv1alpha2 "github.com/kcp-dev/sdk/apis/apis/v1alpha2"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/shardplane/shardplane/pkg/client"
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

// noted returns a LogicalCluster as it is, and as it says what a binding has bound, which
// is nil if it does so already.
func (r *reconciler) noted(cluster logicalcluster.Name, binding string, resources []apisv1alpha2.BoundAPIResource) (lc, updated *corev1alpha1.LogicalCluster, err error) {
	cached, err := r.logicalCluster(cluster)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, nil, err
	}
	key := client.Key{Cluster: cluster, Name: corev1alpha1.LogicalClusterName}
	lc, exists := r.clusters.Of(key, cached, err == nil)
	if !exists {
		return nil, nil, err
	}
	updated, err = withLocks(lc, binding, resources)
	return lc, updated, err
}

// note says in the LogicalCluster what a binding has bound, for tools that go by it.
func (r *reconciler) note(ctx context.Context, cluster logicalcluster.Name, binding string, resources []apisv1alpha2.BoundAPIResource) error {
	defer r.noting.lock(cluster)()
	lc, updated, err := r.noted(cluster, binding, resources)
	if err != nil || updated == nil {
		return err
	}
	written, err := r.commitCluster(ctx, lc, updated)
	if err != nil {
		return err
	}
	r.clusters.Wrote(written)
	return nil
}

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
