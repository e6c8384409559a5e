// Package limits is the admission plugin that limits the number and size of the objects of a logical cluster, because
// tenants share an etcd. Limits apply to a logical cluster alone, or together with all workspaces below it. It also
// limits the size of objects of some kinds that all shards replicate, and lists that are expensive to process.
//
// If a logical cluster exceeds a limit, it keeps its objects. Creates are rejected, and updates that grow an
// object if the bytes exceed the limit.
package limits

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/kcp-dev/sdk/apis/core"
	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	tenancyv1alpha1 "github.com/kcp-dev/sdk/apis/tenancy/v1alpha1"
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
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/admission/percluster"
	"github.com/shardplane/shardplane/pkg/instruments"
	"github.com/shardplane/shardplane/pkg/request"
	"github.com/shardplane/shardplane/pkg/request/identity"
	"github.com/shardplane/shardplane/pkg/request/quantities"
	"github.com/shardplane/shardplane/pkg/storage/usage"
	"github.com/shardplane/shardplane/pkg/tenancy"
	"github.com/shardplane/shardplane/pkg/tenancy/subtrees"
	"github.com/shardplane/shardplane/pkg/tenancy/toplevel"
)

// Config configures the plugin.
type Config struct {
	Options

	Usage Usage
	// Subtrees returns the limited subtrees that contain the workspace at a path.
	Subtrees func(path string) []*subtrees.Subtree
	// LogicalCluster returns a LogicalCluster of the shard, or nil.
	LogicalCluster func(logicalcluster.Name) *corev1alpha1.LogicalCluster
	// Homes and Owners implement the limits of home workspaces; nil Owners disables them.
	Homes  HomeLimits
	Owners Owners
	// Unstored resources are created but not stored.
	Unstored []schema.GroupResource
	Metrics  prometheus.Registerer
}

// Usage reports the stored objects and bytes.
type Usage interface {
	// Of returns the usage of a logical cluster, and whether it is known.
	Of(cluster logicalcluster.Name) (usage.Usage, bool)
	// OfKind returns the usage of a replicated resource in a logical cluster. It is not known for other resources.
	OfKind(cluster logicalcluster.Name, resource schema.GroupResource) (usage.Usage, bool)
	// Full and Filling report whether the shard has no, or little, capacity for tenants. HistoryFull reports whether it is
	// full and has no capacity for the former values of objects either.
	Full() bool
	Filling() bool
	HistoryFull() bool
}

type plugin struct {
	c                  Config
	rejectedReplicated *prometheus.CounterVec
}

// NewLimits returns the plugin.
func NewLimits(c Config) percluster.Plugin {
	p := &plugin{c: c, rejectedReplicated: instruments.NewCounterVec(c.Metrics, "shardplane_replicated_refused_total",
		"Writes rejected because a logical cluster has reached a limit of replicated objects, by resource.", "resource")}
	return percluster.Plugin{Handler: admission.NewHandler(admission.Create, admission.Update), Admits: admit, Validates: p.validate}
}

// admit changes nothing, and rejects objects that are expensive to validate.
func admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	owners := func(obj runtime.Object) int { return metadataOf(obj).owners }
	const message = "metadata.ownerReferences has %d entries, at most %d allowed: use one owner, and let that object reference the other owners"
	if err := limitCount(a, maxOwners, owners, message); err != nil {
		return err
	}
	return validMetadata(a)
}

func (p *plugin) validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if err := cmp.Or(validAnnotations(a), validKind(a), validAggregation(a), validSizes(a)); err != nil {
		return err
	}
	resource := a.GetResource().GroupResource()
	create := a.GetOperation() == admission.Create
	switch {
	case percluster.IsServer(a.GetUserInfo()):
		return nil
	case slices.Contains(p.c.Unstored, resource), create && a.GetSubresource() != "":
		return nil
	}
	cluster, _ := request.ClusterNameFrom(ctx)
	lc, w := p.c.LogicalCluster(cluster), write{a, create, create && !isEvent(resource), "objects", "bytes"}
	if err := p.withinStorage(ctx, w, cluster, lc); err != nil || lc == nil {
		return err
	}
	if err := p.withinHome(w, cluster, lc); err != nil {
		return err
	}
	if used, known := p.c.Usage.Of(cluster); known {
		own := w
		own.counts = w.counts && isFilled(lc)
		const message = "the logical cluster %s has %d %s, at most %d allowed: delete objects, or have an administrator raise %s"
		if err := own.within(used, p.limitsOf(cluster, lc), message, cluster.String(), annotationOrFlag(tenancy.MaxObjectsAnnotation, objectsFlag), annotationOrFlag(tenancy.MaxBytesAnnotation, bytesFlag)); err != nil {
			return err
		}
	}
	if used, known := p.c.Usage.OfKind(cluster, resource); known && isLimited(cluster) {
		if err := p.withinReplicated(w, cluster, used); err != nil {
			return err
		}
	}
	for _, subtree := range p.c.Subtrees(tenancy.PathOf(lc).String()) {
		const message = "the workspace %s and all workspaces below it have %d %s, at most %d allowed: delete objects, or have an administrator raise the annotation %s of its LogicalCluster"
		if err := w.within(usage.Usage(subtree.Used), usage.Usage(subtree.Most), message, subtree.Path, tenancy.MaxSubtreeObjectsAnnotation, tenancy.MaxSubtreeBytesAnnotation); err != nil {
			return err
		}
	}
	return nil
}

// isFilled reports whether initialization of a logical cluster has completed, so that the number of its
// objects is limited. Bytes and subtrees are limited from the start. Otherwise, a user could write a
// WorkspaceType with an initializer that never completes, and fill the logical cluster through its virtual
// workspace.
func isFilled(lc *corev1alpha1.LogicalCluster) bool {
	return lc.Status.Phase == corev1alpha1.LogicalClusterPhaseReady || lc.DeletionTimestamp != nil
}

type write struct {
	admission.Attributes

	create         bool
	counts         bool   // adds an object
	objects, bytes string // what limits count, in messages
}

// within rejects a write that exceeds a limit; 0 means no limit. message is a format with the subject, the used
// amount and its unit, the limit, and the annotation or flag with which an administrator can raise it.
// raiseObjects and raiseBytes are the annotations or flags for the limits of objects and bytes.
func (w write) within(used, most usage.Usage, message, subject, raiseObjects, raiseBytes string) error {
	switch {
	case most.Objects > 0 && used.Objects >= most.Objects && w.counts:
		return admission.NewForbidden(w, fmt.Errorf(message, subject, used.Objects, w.objects, most.Objects, raiseObjects))
	case most.Bytes > 0 && used.Bytes >= most.Bytes && (w.create || grows(w)):
		return admission.NewForbidden(w, fmt.Errorf(message, subject, used.Bytes, w.bytes, most.Bytes, raiseBytes))
	default:
		return nil
	}
}

func annotationOrFlag(annotation, flag string) string {
	return "the annotation " + annotation + " of its LogicalCluster, or --" + flag
}

// maxReplicaBytes is below etcd's default of 1.5 MiB, because replicas have additional annotations. If etcd rejected
// one, the shard would never report that replication is complete.
//
//reference:limit object | replicated kinds: size of an object as JSON, except in `root` and `system:*` | 413
const maxReplicaBytes = 5 << 18

// withinReplicated limits the objects of a kind that is replicated to the cache server and other shards.
func (p *plugin) withinReplicated(w write, cluster logicalcluster.Name, used usage.Usage) error {
	resource := w.GetResource().GroupResource()
	if n := replicaSize(w.GetObject()); n > maxReplicaBytes && (w.create || n > replicaSize(w.GetOldObject())) {
		p.rejectedReplicated.WithLabelValues(resource.String()).Inc()
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("%s %q has %d bytes, at most %d allowed, because cache servers store it with additional metadata", resource, w.GetName(), n, maxReplicaBytes))
	}
	if w.GetSubresource() != "" {
		return nil
	}
	const message = "the logical cluster %s has %d %s, at most %d allowed, because they are replicated to other shards: delete objects, or have an administrator raise --%s"
	w.objects, w.bytes = resource.String(), "bytes of "+resource.String()
	most := usage.Usage{Objects: p.c.MaxReplicated, Bytes: p.c.MaxReplicatedBytes}
	err := w.within(used, most, message, cluster.String(), replicatedFlag, replicatedBytesFlag)
	if err != nil {
		p.rejectedReplicated.WithLabelValues(resource.String()).Inc()
	}
	return err
}

// replicaSize returns the size of an object as JSON, which cache servers store, or less if it is far below the limit.
func replicaSize(obj runtime.Object) int {
	// JSON is less than sixteen times as long as other encodings.
	if sized, ok := obj.(interface{ Size() int }); ok && sized.Size() < maxReplicaBytes/16 {
		return sized.Size()
	}
	return jsonSize(obj)
}

// isLimited reports whether default limits apply to a logical cluster.
func isLimited(cluster logicalcluster.Name) bool {
	return cluster != core.RootCluster && !request.IsSystem(cluster)
}

// limitsOf returns the limits of a logical cluster; 0 means no limit.
func (p *plugin) limitsOf(cluster logicalcluster.Name, lc *corev1alpha1.LogicalCluster) usage.Usage {
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

// validAnnotations rejects limit annotations that cannot be parsed.
func validAnnotations(a admission.Attributes) error {
	if a.GetResource().GroupResource() != corev1alpha1.Resource("logicalclusters") {
		return nil
	}
	lc, err := meta.Accessor(a.GetObject())
	if err != nil {
		return nil //nolint:nilerr // an object of a subresource
	}
	annotations := lc.GetAnnotations()
	for _, annotation := range []string{tenancy.MaxObjectsAnnotation, tenancy.MaxSubtreeObjectsAnnotation} {
		if text, ok := annotations[annotation]; ok {
			if _, err := strconv.ParseInt(text, 10, 64); err != nil {
				return admission.NewForbidden(a, fmt.Errorf("the annotation %s is %q, but must be an integer, or 0 for no limit", annotation, text))
			}
		}
	}
	for _, annotation := range []string{tenancy.MaxBytesAnnotation, tenancy.MaxSubtreeBytesAnnotation} {
		if text, ok := annotations[annotation]; ok {
			if _, err := quantities.Parse(text); err != nil {
				return admission.NewForbidden(a, fmt.Errorf("the annotation %s is %q, but must be a quantity such as 2Gi, or 0 for no limit", annotation, text))
			}
		}
	}
	return nil
}

// isEvent reports whether object limits exclude a resource, because Events are created as a side effect and expire.
func isEvent(r schema.GroupResource) bool {
	return r == corev1.Resource("events") || r == eventsv1.Resource("events")
}

func grows(a admission.Attributes) bool { return size(a.GetObject()) > size(a.GetOldObject()) }

// insufficient returns status 507 for growth that the shard has no capacity for.
func insufficient(a admission.Attributes, reason string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusInsufficientStorage,
		Reason:  metav1.StatusReasonUnknown,
		Message: fmt.Sprintf("%s cannot be stored: %s; only deletes and few updates that do not grow an object are accepted until the operator frees storage", a.GetResource().GroupResource(), reason),
		Details: &metav1.StatusDetails{Group: a.GetResource().Group, Kind: a.GetResource().Resource, Name: a.GetName()},
	}}
}

// Owners reports the storage usage of top-level owners on the shard.
type Owners interface {
	// Usage returns the usage of an owner, and whether it is known.
	Usage(owner string) (toplevel.Usage, bool)
	// UsesMost reports whether an owner stores much more than the average.
	UsesMost(owner string) bool
}

var workspaces = tenancyv1alpha1.Resource("workspaces")

// withinStorage rejects growth if the shard is nearly full: first of the owners that use most storage, then of all.
// While HistoryFull, it also rejects their other updates. Root and system logical clusters are limited by etcd only.
func (p *plugin) withinStorage(ctx context.Context, w write, cluster logicalcluster.Name, lc *corev1alpha1.LogicalCluster) error {
	m, err := meta.Accessor(w.GetObject())
	deletes := err == nil && m.GetDeletionTimestamp() != nil && len(m.GetFinalizers()) == 0 // stores nothing
	if !isLimited(cluster) || !w.create && !grows(w) && (deletes || !p.c.Usage.HistoryFull()) {
		return nil
	}
	// Members of system:masters can free storage.
	if identity.MemberOf(ctx, w.GetUserInfo(), user.SystemPrivilegedGroup, request.GroupShards) {
		return nil
	}
	switch {
	case p.c.Usage.Full():
		return insufficient(w, "the shard is nearly full")
	case lc == nil || p.c.Owners == nil || !p.c.Usage.Filling():
		return nil
	}
	if owner := toplevel.Of(tenancy.PathOf(lc).String()); owner != "" && p.c.Owners.UsesMost(owner) {
		return insufficient(w, fmt.Sprintf("the shard is filling up, and %s with all workspaces below it stores more than 1.5 times the mean of all owners", owner))
	}
	return nil
}

// withinHome rejects writes that exceed the limits of a home workspace without an own limit by annotation.
func (p *plugin) withinHome(w write, cluster logicalcluster.Name, lc *corev1alpha1.LogicalCluster) error {
	owner := toplevel.Of(tenancy.PathOf(lc).String())
	if p.c.Owners == nil || !toplevel.IsHome(owner) {
		return nil
	}
	used, known := p.c.Owners.Usage(owner)
	if !known {
		return nil
	}
	if own, known := p.c.Usage.Of(cluster); known { // newer than the sum
		used.Objects, used.Bytes = max(used.Objects, own.Objects), max(used.Bytes, own.Bytes)
	}
	most := p.c.Homes
	for _, subtree := range p.c.Subtrees(owner) {
		if subtree.Path != owner {
			continue
		}
		if subtree.Most.Objects > 0 {
			most.Objects = 0
		}
		if subtree.Most.Bytes > 0 {
			most.Bytes = 0
		}
	}
	const message = "the home workspace %s and all workspaces below it have %d %s on this shard, at most %d allowed: delete objects, or have an administrator raise %s"
	homes := usage.Usage{Objects: most.Objects, Bytes: most.Bytes}
	err := w.within(usage.Usage(used.Amount), homes, message, owner, annotationOrFlag(tenancy.MaxSubtreeObjectsAnnotation, homeObjectsFlag), annotationOrFlag(tenancy.MaxSubtreeBytesAnnotation, homeBytesFlag))
	if err == nil && w.create && w.GetResource().GroupResource() == workspaces && most.Workspaces > 0 && used.Workspaces >= most.Workspaces {
		err = admission.NewForbidden(w, fmt.Errorf(message, owner, used.Workspaces, "workspaces", most.Workspaces, "--"+homeWorkspacesFlag))
	}
	return err
}
