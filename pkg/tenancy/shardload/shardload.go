// Package shardload defines the heartbeats of shards and their load.
//
// A shard renews a Lease in root, the heartbeat, with its load. Root's shard evaluates the heartbeats, and updates the
// condition Ready and the load of the Shard objects, which are used to choose a shard.
package shardload

import (
	"encoding/json"
	"strconv"
	"time"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// LeaseNamespace is the namespace in root that contains the heartbeats. Only the system and administrators may write there.
	LeaseNamespace = metav1.NamespaceSystem
	// LeaseLabel is the name of the shard of a heartbeat.
	//
	//reference:metadata Lease in root | the shard
	LeaseLabel = "internal.shardplane.io/heartbeat"
	// leaseAnnotation is the load of the shard as JSON.
	//
	//reference:metadata Lease in root | the shard
	leaseAnnotation = "internal.shardplane.io/load"

	// Interval is the interval of heartbeats, as for Kubernetes nodes.
	Interval = 10 * time.Second
	// Missed is the number of missed heartbeats after which a shard is not ready. It must outlast leader election.
	Missed = 4
)

// LeaseName returns the name of a shard's heartbeat.
func LeaseName(shard string) string { return "shard-" + shard }

// Reasons of the condition Ready of Shards.
const (
	ReasonHeartbeatMissing = "HeartbeatMissing"
	ReasonStorageFull      = "StorageFull"
)

// CachesReady is a condition of Shards: the shard can use its cache servers, so that replicas are current.
const CachesReady conditionsv1alpha1.ConditionType = "CachesReady"

// ReasonNoCache is the reason of CachesReady if the shard has no cache server, although there are other shards.
const ReasonNoCache = "NoCache"

// These annotations of Shards contain the usage. The limits are in status.capacity.
const (
	// WorkspacesAnnotation is the number of workspaces on the shard.
	//
	//reference:metadata Shard | shard health controller
	WorkspacesAnnotation = "core.shardplane.io/workspaces"
	// ObjectsAnnotation is the number of objects on the shard.
	//
	//reference:metadata Shard | shard health controller
	ObjectsAnnotation = "core.shardplane.io/objects"
	// StorageAnnotation is the used storage of the shard.
	//
	//reference:metadata Shard | shard health controller
	StorageAnnotation = "core.shardplane.io/storage"
)

// Amount is the usage of a resource, and its limit. 0 means no limit.
type Amount struct {
	Used  int64 `json:"used"`
	Limit int64 `json:"limit,omitempty"`
}

// Load is the load of a shard.
type Load struct {
	// Workspaces is the number of logical clusters that belong to a workspace.
	Workspaces Amount `json:"workspaces"`
	// Objects is the number of objects except Events.
	Objects Amount `json:"objects"`
	// Storage is the size in use in etcd, in bytes. Its limit is etcd's quota, or a lower one.
	Storage Amount `json:"storage"`
	// Full is set while etcd is so close to its quota that tenants may only delete.
	Full bool `json:"full,omitempty"`
	// Caches contains the reason, if any, why a cache server cannot be used, by name. It is nil until the shard has
	// checked them.
	Caches map[string]string `json:"caches"`
}

// With returns the load with additional workspaces.
func (l Load) With(more int64) Load {
	l.Workspaces.Used += more
	return l
}

type part struct {
	*Amount

	name       corev1.ResourceName // in status.capacity
	annotation string              // the usage, on Shards
}

func (l *Load) parts() []part {
	return []part{
		{&l.Workspaces, "workspaces", WorkspacesAnnotation},
		{&l.Objects, "objects", ObjectsAnnotation},
		{&l.Storage, corev1.ResourceStorage, StorageAnnotation},
	}
}

func (p part) text(amount int64) string {
	if p.name != corev1.ResourceStorage {
		return strconv.FormatInt(amount, 10)
	}
	const mebibyte = 1 << 20
	return resource.NewQuantity((amount+mebibyte-1)/mebibyte*mebibyte, resource.BinarySI).String()
}

// Descriptions returns the usages with their limits, such as "3/100 workspaces".
func (l Load) Descriptions() []string {
	all := make([]string, 0, 3)
	for _, p := range l.parts() {
		text := p.text(p.Used)
		if p.Limit > 0 {
			text += "/" + p.text(p.Limit)
		}
		all = append(all, text+" "+string(p.name))
	}
	return all
}

// FullOf returns the resource, as in status.capacity, whose limit prevents new workspaces, or "".
func (l Load) FullOf() string {
	for _, p := range l.parts() {
		if p.Limit > 0 && p.Used >= p.Limit {
			return string(p.name)
		}
	}
	return ""
}

// NearlyFull reports whether the usage of some resource is at least 90% of its limit.
func (l Load) NearlyFull() bool { return l.Percent() >= 90 }

// Percent returns the highest usage relative to a limit.
func (l Load) Percent() (most int64) {
	for _, p := range l.parts() {
		if p.Limit > 0 {
			most = max(most, p.Used*100/p.Limit)
		}
	}
	return most
}

// SetOnLease sets or removes the load on a heartbeat.
func SetOnLease(lease *coordinationv1.Lease, load *Load) error {
	if load == nil {
		delete(lease.Annotations, leaseAnnotation)
		return nil
	}
	text, err := json.Marshal(load)
	if err != nil {
		return err
	}
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, leaseAnnotation, string(text))
	return nil
}

// OfLease returns the load in a heartbeat.
func OfLease(lease metav1.Object) (load Load, known bool) {
	text, ok := lease.GetAnnotations()[leaseAnnotation]
	return load, ok && json.Unmarshal([]byte(text), &load) == nil
}

// SetOnShard sets the load on a Shard object.
func (l Load) SetOnShard(shard *corev1alpha1.Shard) {
	shard.Status.Capacity = nil
	for _, p := range l.parts() {
		metav1.SetMetaDataAnnotation(&shard.ObjectMeta, p.annotation, p.text(p.Used))
		if p.Limit == 0 {
			continue
		}
		if shard.Status.Capacity == nil {
			shard.Status.Capacity = corev1.ResourceList{}
		}
		format := resource.DecimalSI
		if p.name == corev1.ResourceStorage {
			format = resource.BinarySI
		}
		shard.Status.Capacity[p.name] = *resource.NewQuantity(p.Limit, format)
	}
}

// ClearOnShard removes everything from a Shard object that was derived from heartbeats.
func ClearOnShard(shard *corev1alpha1.Shard) {
	for _, p := range (&Load{}).parts() {
		delete(shard.Annotations, p.annotation)
	}
	shard.Status.Capacity = nil
	conditions.Delete(shard, conditionsv1alpha1.ReadyCondition)
	conditions.Delete(shard, CachesReady)
}

// OfShard returns the load in a Shard object, and false if there has been no heartbeat yet.
func OfShard(shard *corev1alpha1.Shard) (load Load, known bool) {
	for _, p := range load.parts() {
		used, err := resource.ParseQuantity(shard.Annotations[p.annotation])
		if err != nil {
			return Load{}, false
		}
		limit := shard.Status.Capacity[p.name]
		p.Used, p.Limit = used.Value(), limit.Value()
	}
	return load, true
}

// Unready returns the reason why a shard is not ready, or "". A shard is considered ready before its first heartbeat.
func Unready(shard *corev1alpha1.Shard) string {
	ready := conditions.Get(shard, conditionsv1alpha1.ReadyCondition)
	if ready == nil || ready.Status != corev1.ConditionFalse {
		return ""
	}
	return ready.Reason
}
