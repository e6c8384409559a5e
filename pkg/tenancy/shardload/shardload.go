// Package shardload is how shards say that they live and how much they hold, and how others
// read it.
//
// A shard renews a Lease in root, the heartbeat, and puts its load beside it. Root's shard
// judges all shards by that, and writes the condition Ready and the load into the Shard
// objects, where everybody reads it who chooses a shard.
package shardload

import (
	"encoding/json"
	"strconv"
	"time"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	conditionsv1alpha1 "github.com/kcp-dev/sdk/apis/third_party/conditions/apis/conditions/v1alpha1"
	"github.com/kcp-dev/sdk/apis/third_party/conditions/util/conditions"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// LeaseNamespace has the heartbeats, in root. Nobody but the system and administrators
	// writes there.
	LeaseNamespace = metav1.NamespaceSystem
	// LeaseLabel is on heartbeats, with the name of the shard.
	LeaseLabel = "internal.shardplane.io/heartbeat"
	// leaseAnnotation has the load of a shard, in JSON, on its heartbeat.
	leaseAnnotation = "internal.shardplane.io/load"

	// Interval is how often a shard renews its heartbeat, as Kubernetes' nodes do.
	Interval = 10 * time.Second
	// Missed is how many heartbeats have to be missed for a shard to count as unready. So
	// many outlast a change of its leader.
	Missed = 4
)

// LeaseName is the name of a shard's heartbeat.
func LeaseName(shard string) string { return "shard-" + shard }

// Reasons of the condition Ready of Shards.
const (
	ReasonHeartbeatMissing = "HeartbeatMissing"
	ReasonStorageFull      = "StorageFull"
)

// CachesReady is a condition of Shards: the shard can use its cache servers. Without it other
// shards have old replicas of what is on the shard, or none, and vice versa.
const CachesReady conditionsv1alpha1.ConditionType = "CachesReady"

// ReasonNoCache is the reason of CachesReady if the shard has no cache server, but there are
// other shards.
const ReasonNoCache = "NoCache"

// Annotations of Shards, which say how much is used. How much there may be is in their
// status.capacity.
const (
	WorkspacesAnnotation = "core.shardplane.io/workspaces"
	ObjectsAnnotation    = "core.shardplane.io/objects"
	StorageAnnotation    = "core.shardplane.io/storage"
)

// Amount is how much is used of how much there may be, which is 0 for any.
type Amount struct {
	Used  int64 `json:"used"`
	Limit int64 `json:"limit,omitempty"`
}

// Load is what a shard holds.
type Load struct {
	// Workspaces are the logical clusters that belong to one.
	Workspaces Amount `json:"workspaces"`
	// Objects are all but Events.
	Objects Amount `json:"objects"`
	// Storage is what etcd has in use, in bytes, and the limit its quota where there is no
	// lower one.
	Storage Amount `json:"storage"`
	// Full is set while etcd is so near its quota that tenants may only delete.
	Full bool `json:"full,omitempty"`
	// Caches are the cache servers that the shard uses, by name, with the reason if something is
	// wrong with one. They are nil before the shard has checked them, and of shards of earlier
	// releases.
	Caches map[string]string `json:"caches"`
}

// With returns the load with so many workspaces more.
func (l Load) With(more int64) Load {
	l.Workspaces.Used += more
	return l
}

// part is one of the amounts of a load.
type part struct {
	*Amount

	// name is what it is called in status.capacity, and annotation is where it stands on
	// Shards how much is used.
	name       corev1.ResourceName
	annotation string
}

// parts are the amounts, which may be changed.
func (l *Load) parts() []part {
	return []part{
		{&l.Workspaces, "workspaces", WorkspacesAnnotation},
		{&l.Objects, "objects", ObjectsAnnotation},
		{&l.Storage, corev1.ResourceStorage, StorageAnnotation},
	}
}

// text writes an amount as people read it.
func (p part) text(amount int64) string {
	if p.name != corev1.ResourceStorage {
		return strconv.FormatInt(amount, 10)
	}
	const mebibyte = 1 << 20
	return resource.NewQuantity((amount+mebibyte-1)/mebibyte*mebibyte, resource.BinarySI).String()
}

// Words says what is used, and of how much: "3/100 workspaces", ….
func (l Load) Words() []string {
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

// FullOf returns what the shard has so much of that it takes no more workspaces, as
// status.capacity names it, or nothing.
func (l Load) FullOf() string {
	for _, p := range l.parts() {
		if p.Limit > 0 && p.Used >= p.Limit {
			return string(p.name)
		}
	}
	return ""
}

// NearlyFull reports whether the shard has reached nine tenths of some limit.
func (l Load) NearlyFull() bool { return l.Percent() >= 90 }

// Percent is how much is used of the limit that is nearest.
func (l Load) Percent() (most int64) {
	for _, p := range l.parts() {
		if p.Limit > 0 {
			most = max(most, p.Used*100/p.Limit)
		}
	}
	return most
}

// SetOnLease says the load on a heartbeat; nil says none.
func SetOnLease(lease metav1.Object, load *Load) error {
	annotations := lease.GetAnnotations()
	delete(annotations, leaseAnnotation)
	if load != nil {
		text, err := json.Marshal(load)
		if err != nil {
			return err
		}
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[leaseAnnotation] = string(text)
	}
	lease.SetAnnotations(annotations)
	return nil
}

// OfLease returns what a heartbeat says, and whether it says anything.
func OfLease(lease metav1.Object) (load Load, known bool) {
	text, ok := lease.GetAnnotations()[leaseAnnotation]
	return load, ok && json.Unmarshal([]byte(text), &load) == nil
}

// SetOnShard writes the load into a Shard object.
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

// ClearOnShard takes out of a Shard object all that is known from heartbeats.
func ClearOnShard(shard *corev1alpha1.Shard) {
	for _, p := range (&Load{}).parts() {
		delete(shard.Annotations, p.annotation)
	}
	shard.Status.Capacity = nil
	conditions.Delete(shard, conditionsv1alpha1.ReadyCondition)
	conditions.Delete(shard, CachesReady)
}

// OfShard returns what a Shard object says, and whether it says anything: a new
// Shard has no load before its first heartbeat.
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

// Unready returns why a shard is not ready, or nothing. One of which nobody has heard yet
// counts as ready.
func Unready(shard *corev1alpha1.Shard) string {
	ready := conditions.Get(shard, conditionsv1alpha1.ReadyCondition)
	if ready == nil || ready.Status != corev1.ConditionFalse {
		return ""
	}
	return ready.Reason
}
