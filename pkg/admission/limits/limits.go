// Package limits is the admission plugin that bounds what a logical cluster
// stores, alone and with all workspaces below it, in objects and in bytes, so that no tenant fills the etcd that it shares
// with others, how large objects of some kinds are that all shards keep, and how much one may
// have that is work for others. Who is
// over a limit when it comes keeps what is there: creates are refused, and updates
// that make an object larger where it is the bytes; deletes and updates that make it
// no larger pass.
package limits

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"

	"github.com/shardplane/shardplane/pkg/admission/percluster"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/storage/usage"
	"github.com/shardplane/shardplane/pkg/tenancy"
	"github.com/shardplane/shardplane/pkg/tenancy/subtrees"
)

// Config is what the plugin needs.
type Config struct {
	Options

	// Usage says what is stored.
	Usage Usage
	// Subtrees returns the limited subtrees of workspaces that a path is in.
	Subtrees func(path string) []*subtrees.Subtree
	// LogicalCluster returns the object of a logical cluster of the shard, or nil.
	LogicalCluster func(logicalcluster.Name) *corev1alpha1.LogicalCluster
	// Homes are the limits of home workspaces, and Owners what these, and others, store; nil limits nothing.
	Homes  HomeLimits
	Owners Owners
	// Unstored are resources that are created and not stored.
	Unstored []schema.GroupResource
	// Metrics registers metrics; nil registers none.
	Metrics prometheus.Registerer
}

// Usage says what is stored.
type Usage interface {
	// Of returns what a logical cluster stores, and whether that is known.
	Of(cluster logicalcluster.Name) (usage.Usage, bool)
	// OfKind returns what it stores of a resource that is replicated, and whether that is known; it is not of others.
	OfKind(cluster logicalcluster.Name, resource schema.GroupResource) (usage.Usage, bool)
	// Full reports whether there is no room left for tenants, and Filling whether there is little.
	Full() bool
	Filling() bool
}

// Plugin implements admission.MutationInterface and admission.ValidationInterface.
type Plugin struct {
	*admission.Handler

	c                 Config
	refusedReplicated *prometheus.CounterVec
}

var (
	_ admission.MutationInterface   = &Plugin{}
	_ admission.ValidationInterface = &Plugin{}
)

// New returns the plugin.
func New(c Config) *Plugin {
	return &Plugin{Handler: admission.NewHandler(admission.Create, admission.Update), c: c, refusedReplicated: newRefusedReplicated(c.Metrics)}
}

// Admit implements admission.MutationInterface. It changes nothing, and rejects objects that are expensive to validate.
func (p *Plugin) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if err := validOwners(a); err != nil {
		return err
	}
	return validMetadata(a)
}

// Validate implements admission.ValidationInterface.
func (p *Plugin) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	for _, valid := range []func(admission.Attributes) error{validAnnotations, validKind, validAggregation, validManagers, validKeyed, validMaps} {
		if err := valid(a); err != nil {
			return err
		}
	}
	resource := a.GetResource().GroupResource()
	create := a.GetOperation() == admission.Create
	switch {
	case percluster.IsServer(a.GetUserInfo()):
		return nil
	case slices.Contains(p.c.Unstored, resource), create && a.GetSubresource() != "":
		return nil
	}
	cluster, err := request.ClusterNameFrom(ctx)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	lc, w := p.c.LogicalCluster(cluster), write{Attributes: a, counts: create && !isEvent(resource), create: create}
	if err := p.withinStorage(ctx, w, cluster, lc); err != nil || lc == nil {
		return err
	}
	if err := p.withinHome(w, cluster, lc); err != nil {
		return err
	}
	if used, known := p.c.Usage.Of(cluster); known {
		own := w
		own.counts = w.counts && isFilled(lc)
		if err := p.withinOwn(own, cluster, lc, used); err != nil {
			return err
		}
	}
	if used, known := p.c.Usage.OfKind(cluster, resource); known && isLimited(cluster) {
		if err := p.withinReplicated(w, cluster, used); err != nil {
			return err
		}
	}
	for _, subtree := range p.c.Subtrees(tenancy.PathOf(lc).String()) {
		if err := w.withinSubtree(subtree); err != nil {
			return err
		}
	}
	return nil
}

// isFilled reports whether a logical cluster has all that its type puts there, from when on its
// objects are limited. Its bytes are from the start, and so is what it takes of limited subtrees: who
// may write a WorkspaceType can have an initializer that never ends, and fill the logical cluster
// through its view.
func isFilled(lc *corev1alpha1.LogicalCluster) bool {
	return lc.Status.Phase == corev1alpha1.LogicalClusterPhaseReady || lc.DeletionTimestamp != nil
}

// write is what is judged.
type write struct {
	admission.Attributes

	create bool
	counts bool // makes one object more
}

// over reports whether a write is refused by a limit, which is 0 for none.
func (w write) over(objects, mostObjects, bytes, mostBytes int64) (byObjects, byBytes bool) {
	byObjects = mostObjects > 0 && objects >= mostObjects && w.counts
	byBytes = !byObjects && mostBytes > 0 && bytes >= mostBytes && (w.create || grows(w))
	return byObjects, byBytes
}

// withinOwn refuses what the logical cluster may not store.
func (p *Plugin) withinOwn(w write, cluster logicalcluster.Name, lc *corev1alpha1.LogicalCluster, used usage.Usage) error {
	most := p.limitsOf(cluster, lc)
	switch byObjects, byBytes := w.over(used.Objects, most.Objects, used.Bytes, most.Bytes); {
	case byObjects:
		return admission.NewForbidden(w, fmt.Errorf("the logical cluster %s holds %d objects and may hold %d: delete what is not needed, or have an administrator raise the annotation %s of its LogicalCluster, or --%s",
			cluster, used.Objects, most.Objects, tenancy.MaxObjectsAnnotation, objectsFlag))
	case byBytes:
		return admission.NewForbidden(w, fmt.Errorf("the logical cluster %s stores %d bytes and may store %d: delete what is not needed, or have an administrator raise the annotation %s of its LogicalCluster, or --%s",
			cluster, used.Bytes, most.Bytes, tenancy.MaxBytesAnnotation, bytesFlag))
	}
	return nil
}

// maxReplicaBytes is how large an object may be that is replicated: the replica has some annotations more, and one that
// etcd does not take, which stores 1.5 MiB by default, would keep the shard from ever saying that all is replicated.
const maxReplicaBytes = 5 << 18

// withinReplicated refuses more of a kind than the cache server, and the other shards, are to have from one logical
// cluster.
func (p *Plugin) withinReplicated(w write, cluster logicalcluster.Name, used usage.Usage) error {
	resource := w.GetResource().GroupResource()
	if n := replicaSize(w.GetObject()); n > maxReplicaBytes && (w.create || n > replicaSize(w.GetOldObject())) {
		p.refusedReplicated.WithLabelValues(resource.String()).Inc()
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("%s %q has %d bytes and may have %d, since cache servers store it with what they know of it", resource, w.GetName(), n, maxReplicaBytes))
	}
	if w.GetSubresource() != "" {
		return nil
	}
	var err error
	switch byObjects, byBytes := w.over(used.Objects, p.c.MaxReplicated, used.Bytes, p.c.MaxReplicatedBytes); {
	case byObjects:
		err = fmt.Errorf("the logical cluster %s holds %d %s and may hold %d, since other shards know them: delete what is not needed, or have an administrator raise --%s",
			cluster, used.Objects, resource, p.c.MaxReplicated, replicatedFlag)
	case byBytes:
		err = fmt.Errorf("the logical cluster %s stores %d bytes of %s and may store %d, since other shards know them: delete what is not needed, or have an administrator raise --%s",
			cluster, used.Bytes, resource, p.c.MaxReplicatedBytes, replicatedBytesFlag)
	default:
		return nil
	}
	p.refusedReplicated.WithLabelValues(resource.String()).Inc()
	return admission.NewForbidden(w, err)
}

// replicaSize returns how many bytes of JSON, which cache servers store, an object is, or fewer where these are
// not many.
func replicaSize(obj runtime.Object) int {
	// JSON is not sixteen times as long as what else is stored.
	if sized, ok := obj.(interface{ Size() int }); ok && sized.Size() < maxReplicaBytes/16 {
		return sized.Size()
	}
	data, err := json.Marshal(obj)
	if err != nil {
		return 0
	}
	return len(data)
}

// withinSubtree refuses what a workspace may not store together with all below it.
func (w write) withinSubtree(subtree *subtrees.Subtree) error {
	used, most := subtree.Used, subtree.Most
	switch byObjects, byBytes := w.over(used.Objects, most.Objects, used.Bytes, most.Bytes); {
	case byObjects:
		return admission.NewForbidden(w, fmt.Errorf("the workspace %s and all below it hold %d objects and may hold %d together: delete what is not needed, or have an administrator raise the annotation %s of its LogicalCluster",
			subtree.Path, used.Objects, most.Objects, tenancy.MaxSubtreeObjectsAnnotation))
	case byBytes:
		return admission.NewForbidden(w, fmt.Errorf("the workspace %s and all below it store %d bytes and may store %d together: delete what is not needed, or have an administrator raise the annotation %s of its LogicalCluster",
			subtree.Path, used.Bytes, most.Bytes, tenancy.MaxSubtreeBytesAnnotation))
	}
	return nil
}

// isLimited reports whether a logical cluster has limits by default.
func isLimited(cluster logicalcluster.Name) bool {
	return cluster != core.RootCluster && !request.IsSystem(cluster)
}

// limitsOf returns what the logical cluster may store, 0 for any amount.
func (p *Plugin) limitsOf(cluster logicalcluster.Name, lc *corev1alpha1.LogicalCluster) usage.Usage {
	var most usage.Usage
	if isLimited(cluster) {
		most = usage.Usage{Objects: p.c.MaxObjects, Bytes: p.c.MaxBytes}
	}
	if n, err := strconv.ParseInt(lc.Annotations[tenancy.MaxObjectsAnnotation], 10, 64); err == nil {
		most.Objects = n
	}
	if q, err := resource.ParseQuantity(lc.Annotations[tenancy.MaxBytesAnnotation]); err == nil {
		most.Bytes = q.Value()
	}
	return most
}

// validAnnotations refuses annotations of limits that say none.
func validAnnotations(a admission.Attributes) error {
	if a.GetResource().GroupResource() != corev1alpha1.Resource("logicalclusters") {
		return nil
	}
	lc, err := meta.Accessor(a.GetObject())
	if err != nil {
		return nil //nolint:nilerr // of another kind, as those of subresources
	}
	for _, annotation := range []string{tenancy.MaxObjectsAnnotation, tenancy.MaxSubtreeObjectsAnnotation} {
		text, ok := lc.GetAnnotations()[annotation]
		if !ok {
			continue
		}
		if _, err := strconv.ParseInt(text, 10, 64); err != nil {
			return admission.NewForbidden(a, fmt.Errorf("the annotation %s is %q, which is no whole number: write one, or 0 for any number of objects", annotation, text))
		}
	}
	for _, annotation := range []string{tenancy.MaxBytesAnnotation, tenancy.MaxSubtreeBytesAnnotation} {
		text, ok := lc.GetAnnotations()[annotation]
		if !ok {
			continue
		}
		if _, err := resource.ParseQuantity(text); err != nil {
			return admission.NewForbidden(a, fmt.Errorf("the annotation %s is %q, which is no quantity: write one such as 2Gi, or 0 for any amount", annotation, text))
		}
	}
	return nil
}

// isEvent reports whether objects of the resource are Events, which the limit of
// objects leaves out: they come from what others do, and go by themselves.
func isEvent(r schema.GroupResource) bool {
	return r == corev1.Resource("events") || r == eventsv1.Resource("events")
}

// grows reports whether the update makes the object larger.
func grows(a admission.Attributes) bool { return size(a.GetObject()) > size(a.GetOldObject()) }

// size returns about how many bytes are stored for obj; what is compared is two of
// the same kind.
func size(obj runtime.Object) int {
	if sized, ok := obj.(interface{ Size() int }); ok {
		return sized.Size()
	}
	data, err := json.Marshal(obj)
	if err != nil {
		return 0
	}
	return len(data)
}

// insufficient is the answer to growth that the shard has no capacity for.
func insufficient(a admission.Attributes, why string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusInsufficientStorage,
		Reason:  metav1.StatusReasonUnknown,
		Message: fmt.Sprintf("%s cannot be stored: %s, and only deletes and updates that make nothing larger pass until its operator has made room", a.GetResource().GroupResource(), why),
		Details: &metav1.StatusDetails{Group: a.GetResource().Group, Kind: a.GetResource().Resource, Name: a.GetName()},
	}}
}
