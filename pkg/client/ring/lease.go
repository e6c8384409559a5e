package ring

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// ringLabel is the name of the ring, on all of its Leases.
	//
	//reference:metadata Lease | rings
	ringLabel = "ring.shardplane.io/ring"
	// tableAnnotation is the table that assigns the slots to members.
	//
	//reference:metadata Lease of a ring | coordinator of the ring
	tableAnnotation = "ring.shardplane.io/table"

	// weightAnnotation is the weight of the member in the assignment of slots.
	//
	//reference:metadata Lease of a member | the member
	weightAnnotation = "ring.shardplane.io/weight"
	// configAnnotation is the configuration of the member, which must be the same for all members.
	//
	//reference:metadata Lease of a member | the member
	configAnnotation = "ring.shardplane.io/config"
	// stateAnnotation is the state of the member, e.g. draining. Active members have none.
	//
	//reference:metadata Lease of a member | the member; coordinator of the ring
	stateAnnotation = "ring.shardplane.io/state"
	// releasedAnnotation is the epoch of the table up to which the member has ended its work in slots that move
	// to other members.
	//
	//reference:metadata Lease of a member | the member
	releasedAnnotation = "ring.shardplane.io/released"
	// loadedAnnotation is the epoch of the table up to which the member has loaded the objects of its new
	// slots.
	//
	//reference:metadata Lease of a member | the member
	loadedAnnotation = "ring.shardplane.io/loaded"
	// renewalsAnnotation is the number of renewals by the member.
	//
	//reference:metadata Lease of a member | the member
	renewalsAnnotation = "ring.shardplane.io/renewals"
)

const maxWeight = 1000

type state string

const (
	active state = ""
	// draining is a member that gives its slots to others and leaves.
	draining state = "draining"
	// left is a member that has ended its work.
	left state = "left"
	// expelled is a member that was expelled by a coordinator.
	expelled state = "expelled"
	// missing is the state of a Lease that replaces a deleted one. It is not renewed, so that the member is expelled.
	missing state = "missing"
)

func (s state) ended() bool { return s == left || s == expelled }

type lease struct {
	id string
	// uid and version are those of the Lease; they are empty if it does not exist.
	uid     types.UID
	version string
	// renewals counts the writes of the member, which recognizes its own writes by it if responses were lost.
	renewals int64
	weight   int
	config   string
	state    state
	// released is the epoch of a table: the member has ended its work in all slots that move away according to it, and
	// begins none before a later table assigns them again.
	released int64
	// loaded is the epoch of a table: the member has loaded all incoming slots of moves up to it.
	loaded int64
}

func leaseName(ring, id string) string { return ring + "-" + id }

func (l lease) object(ring string, duration time.Duration, now time.Time) *coordinationv1.Lease {
	annotations := map[string]string{
		weightAnnotation:   strconv.Itoa(l.weight),
		configAnnotation:   l.config,
		renewalsAnnotation: strconv.FormatInt(l.renewals, 10),
	}
	if l.state != active {
		annotations[stateAnnotation] = string(l.state)
	}
	if l.released > 0 {
		annotations[releasedAnnotation] = strconv.FormatInt(l.released, 10)
	}
	if l.loaded > 0 {
		annotations[loadedAnnotation] = strconv.FormatInt(l.loaded, 10)
	}
	meta := metav1.ObjectMeta{Name: leaseName(ring, l.id), UID: l.uid, ResourceVersion: l.version, Annotations: annotations}
	return leaseObject(meta, ring, l.id, duration, now)
}

func leaseObject(meta metav1.ObjectMeta, ring, holder string, duration time.Duration, now time.Time) *coordinationv1.Lease {
	meta.Labels = map[string]string{ringLabel: ring}
	seconds := int32((duration + time.Second - 1) / time.Second)
	return &coordinationv1.Lease{ObjectMeta: meta, Spec: coordinationv1.LeaseSpec{
		HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &metav1.MicroTime{Time: now},
	}}
}

// leaseOf parses the Lease of a member. Invalid values are ignored: such a member gets no work and disturbs no other.
func leaseOf(ring string, object *coordinationv1.Lease) lease {
	number := func(annotation string) int64 {
		n, _ := strconv.ParseInt(object.Annotations[annotation], 10, 64)
		return n
	}
	id, _ := strings.CutPrefix(object.Name, leaseName(ring, ""))
	return lease{
		id: id, uid: object.UID, version: object.ResourceVersion,
		renewals: number(renewalsAnnotation), released: number(releasedAnnotation), loaded: number(loadedAnnotation),
		weight: min(max(int(number(weightAnnotation)), 1), maxWeight),
		config: object.Annotations[configAnnotation], state: state(object.Annotations[stateAnnotation]),
	}
}

type stored struct {
	*table

	uid     types.UID
	version string
}

func (t *table) object(ring string, replaced stored, duration time.Duration, now time.Time) *coordinationv1.Lease {
	meta := metav1.ObjectMeta{
		Name: ring, UID: replaced.uid, ResourceVersion: replaced.version, Annotations: map[string]string{tableAnnotation: t.String()},
	}
	return leaseObject(meta, ring, t.coordinator, duration, now)
}

func tableOf(object *coordinationv1.Lease) (stored, error) {
	t, err := parseTable(object.Annotations[tableAnnotation])
	if err != nil {
		return stored{}, fmt.Errorf("annotation %s of Lease %s is invalid: %w: delete the Lease to make all members join again", tableAnnotation, object.Name, err)
	}
	if object.Spec.HolderIdentity != nil {
		t.coordinator = *object.Spec.HolderIdentity
	}
	return stored{t, object.UID, object.ResourceVersion}, nil
}
