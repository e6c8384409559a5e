package storage

import (
	"context"
	"fmt"
	"maps"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"

	"github.com/shardplane/shardplane/pkg/request"
)

// Annotate sets the annotation kcp.io/cluster and, on the cache server, kcp.io/shard to those of the
// request. The storage annotates each write, and also records the identity of a bound API, which readers
// remove. Handlers that bypass the storage, e.g. for dry-run, must call Annotate.
func Annotate(ctx context.Context, obj runtime.Object) error {
	cluster, err := request.ClusterNameFrom(ctx)
	if err != nil {
		return err
	}
	shard, _ := request.ShardFrom(ctx)
	return annotate(obj, tenant{shard: shard.Name, cluster: cluster})
}

func annotate(obj runtime.Object, t tenant) error {
	object, err := meta.Accessor(obj)
	if err != nil {
		return fmt.Errorf("cannot annotate an object with its logical cluster: %w", err)
	}
	annotations := object.GetAnnotations()
	identity, noted := annotations[request.IdentityAnnotation]
	if annotations[logicalcluster.AnnotationKey] == string(t.cluster) && (t.shard == "" || annotations[request.ShardAnnotation] == t.shard) &&
		identity == t.identity && noted == (t.identity != "") {
		return nil
	}
	// Copy the map, because it may be shared with an object in the watch cache.
	changed := make(map[string]string, len(annotations)+3)
	maps.Copy(changed, annotations)
	changed[logicalcluster.AnnotationKey] = string(t.cluster)
	delete(changed, request.IdentityAnnotation)
	if t.identity != "" {
		changed[request.IdentityAnnotation] = t.identity
	}
	if t.shard != "" {
		changed[request.ShardAnnotation] = t.shard
	}
	object.SetAnnotations(changed)
	return nil
}

// tenantOf returns the tenant in the annotations of an object. ok is false if they are missing or
// invalid.
func tenantOf(obj runtime.Object, sharded bool) (t tenant, ok bool) {
	object, err := meta.Accessor(obj)
	if err != nil {
		return tenant{}, false
	}
	annotations := object.GetAnnotations()
	t.cluster = logicalcluster.Name(annotations[logicalcluster.AnnotationKey])
	if !request.ValidClusterName(t.cluster) {
		return tenant{}, false
	}
	if t.identity = annotations[request.IdentityAnnotation]; t.identity != "" && !request.ValidIdentity(t.identity) {
		return tenant{}, false
	}
	if sharded {
		t.shard = annotations[request.ShardAnnotation]
		return t, request.ValidName(t.shard)
	}
	return t, true
}

type dryRunAdmission struct{}

// NewDryRunAdmission returns an admission plugin that annotates objects in dry-run requests, because
// registries serve these without the storage. It must be the last mutating plugin.
func NewDryRunAdmission() admission.MutationInterface { return dryRunAdmission{} }

func (dryRunAdmission) Handles(operation admission.Operation) bool {
	return operation == admission.Create || operation == admission.Update
}

func (dryRunAdmission) Admit(ctx context.Context, attrs admission.Attributes, _ admission.ObjectInterfaces) error {
	if !attrs.IsDryRun() || attrs.GetObject() == nil {
		return nil
	}
	switch attrs.GetSubresource() {
	case "", "status", "finalize":
		return Annotate(ctx, attrs.GetObject())
	default: // the object is of another kind, e.g. a scale or a token
		return nil
	}
}
