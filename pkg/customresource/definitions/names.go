package definitions

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/request"
)

// names decides which names of a definition are accepted: those that no other
// API of the group has in the same logical cluster. It decides before the
// definition is written, so that a definition is established in one write.
type names struct {
	// sources have those that go before definitions.
	sources *Sources
	builtIn func(ctx context.Context, group string) ([]apiextensions.CustomResourceDefinitionNames, error)
	objects *Index

	// mu is held while names are compared with those in use and reserved.
	mu sync.Mutex
	// reserved are the names of definitions that are being written, and that
	// objects does not show yet.
	reserved map[nameScope]map[*reservation]struct{}
	// freed are told when names are free again that a reservation kept from
	// another definition.
	freed Listeners[nameScope]
}

// accept sets the accepted names and the conditions of a definition that is
// about to be written, and keeps the names from others for the reservation of
// ctx, if it has one. It refuses new definitions of what the logical cluster has from
// elsewhere, which would never be served. The other errors say that the names in use
// cannot be told now.
func (n *names) accept(ctx context.Context, obj runtime.Object) error {
	crd, ok := obj.(*apiextensions.CustomResourceDefinition)
	if !ok || !crd.DeletionTimestamp.IsZero() {
		return nil
	}
	cluster, err := request.ClusterNameFrom(ctx)
	if err != nil {
		return err
	}
	scope, reserved := nameScope{cluster: cluster, group: crd.Spec.Group}, reservationFrom(ctx)
	violations := nonStructural(&crd.Spec)

	// The reservations first, and then the others: what is stored was reserved until then.
	// Whoever comes later finds what this definition asks for reserved.
	taken := newClaims()
	n.mu.Lock()
	n.othersLocked(taken, scope, crd.Name, &crd.Spec.Names)
	n.objects.claims(taken, scope, crd.Name, math.MaxUint64)
	n.reserveLocked(reserved, scope, crd.Name, &crd.Spec.Names)
	n.mu.Unlock()
	served, err := n.collect(ctx, taken, scope, nil)
	if err != nil {
		return namesUnknown(err.Error())
	}
	if crd.ResourceVersion == "" {
		if err := refuseServed(crd, served); err != nil {
			return err
		}
	}
	before := crd.Status.AcceptedNames
	if isContested(ctx) {
		crd.Status.AcceptedNames = apiextensions.CustomResourceDefinitionNames{}
		setCondition(crd, apiextensions.CustomResourceDefinitionCondition{
			Type: apiextensions.Established, Status: apiextensions.ConditionFalse,
		})
	}
	accept(crd, taken)
	tellNonStructural(crd, violations)

	if reserved != nil {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.reserveLocked(reserved, scope, crd.Name, &crd.Status.AcceptedNames)
		reserved.given = !equalNames(&before, &crd.Status.AcceptedNames)
	}
	return nil
}

func refuseServed(crd *apiextensions.CustomResourceDefinition, served []*Definition) error {
	resource := schema.GroupResource{Group: crd.Spec.Group, Resource: crd.Spec.Names.Plural}
	for _, d := range served {
		if d.Schema.Resource == resource && d.Owner != "" {
			return apierrors.NewForbidden(apiextensions.Resource("customresourcedefinitions"), crd.Name,
				fmt.Errorf("%s is served by %s in this logical cluster: delete that first, or choose another group", resource, d.Owner))
		}
	}
	return nil
}

// namesUnknown is the answer to writes while the names in use cannot be told;
// clients try again by themselves.
func namesUnknown(why string) error {
	return apierrors.NewTooManyRequests("the names in use are not known yet, try again: "+why, 1)
}

// contestedKey marks the write of a definition that gives up its names, to ask
// for them anew.
type contestedKey struct{}

func contested(ctx context.Context) context.Context {
	return context.WithValue(ctx, contestedKey{}, true)
}

func isContested(ctx context.Context) bool { return ctx.Value(contestedKey{}) != nil }

// lost reports whether another definition got a name of crd before crd did. That
// happens when another server of the shard accepted it at the same time: the
// order of revisions is the order of writes for all servers, and the later
// write yields.
func (n *names) lost(cluster logicalcluster.Name, crd *apiextensions.CustomResourceDefinition) bool {
	revision, err := strconv.ParseUint(crd.ResourceVersion, 10, 64)
	if err != nil {
		return false
	}
	theirs, ours := newClaims(), newClaims()
	n.objects.claims(theirs, nameScope{cluster: cluster, group: crd.Spec.Group}, crd.Name, revision)
	ours.add(&crd.Status.AcceptedNames, crd.Name)
	_, _, lost := theirs.conflict(ours)
	return lost
}

// lostToSource reports whether another source serves, or is about to serve, under a name
// that a definition was given. That happens when another server of the shard accepted the
// definition while this one gave the name away. The source serves then, on all servers
// alike: whoever asked it to did so before the definition was written.
func (n *names) lostToSource(ctx context.Context, cluster logicalcluster.Name, crd *apiextensions.CustomResourceDefinition) (bool, error) {
	theirs, ours := newClaims(), newClaims()
	n.mu.Lock() // the reservations first, as in accept
	for r := range n.reserved[nameScope{cluster: cluster, group: crd.Spec.Group}] {
		if r.forSource {
			theirs.add(&r.names, r.definition)
		}
	}
	n.mu.Unlock()
	all, err := n.sources.beforeIndex(ctx, request.Cluster{Name: cluster}, n.sources.system.definitions, nil)
	if err != nil {
		return false, err
	}
	for _, d := range all {
		if d.Owner != "" && d.Schema.Resource.Group == crd.Spec.Group {
			theirs.add(internalNames(d.Schema.Names()), d.Owner)
		}
	}
	ours.add(&crd.Status.AcceptedNames, crd.Name)
	_, _, lost := theirs.conflict(ours)
	return lost, nil
}

// collect adds the names to taken that others than definitions, and than one source,
// use. It returns what these serve: as it is stored, since an index may not show yet what
// its client has seen bound.
func (n *names) collect(ctx context.Context, taken claims, scope nameScope, except Source) ([]*Definition, error) {
	builtIn, builtInErr := n.builtIn(ctx, scope.group)
	for i := range builtIn {
		taken.add(&builtIn[i], "the server")
	}
	definitions, err := n.sources.beforeIndex(ctx, request.Cluster{Name: scope.cluster}, n.sources.system.definitions, except)
	for _, d := range definitions {
		if d.Schema.Resource.Group == scope.group {
			taken.add(internalNames(d.Schema.Names()), cmp.Or(d.Owner, "the server"))
		}
	}
	return definitions, errors.Join(builtInErr, err)
}

// accept moves the free ones of the requested names to the accepted ones, and
// sets the conditions that follow from it.
func accept(crd *apiextensions.CustomResourceDefinition, taken claims) {
	requested, accepted := &crd.Spec.Names, &crd.Status.AcceptedNames
	condition := apiextensions.CustomResourceDefinitionCondition{
		Type: apiextensions.NamesAccepted, Status: apiextensions.ConditionTrue,
		Reason: "NoConflicts", Message: "no conflicts found",
	}
	conflict := func(reason, message string) {
		condition.Status = apiextensions.ConditionFalse
		condition.Reason = reason
		condition.Message = message
	}
	one := func(reason, want string, have *string, used users) {
		if want != *have && used.Has(want) {
			conflict(reason, fmt.Sprintf("%q is already in use", want))
			return
		}
		*have = want
	}
	one("PluralConflict", requested.Plural, &accepted.Plural, taken.resources)
	one("SingularConflict", requested.Singular, &accepted.Singular, taken.resources)
	var inUse []string
	for _, short := range requested.ShortNames {
		if taken.resources.Has(short) && !slices.Contains(accepted.ShortNames, short) {
			inUse = append(inUse, short)
		}
	}
	if len(inUse) > 0 {
		conflict("ShortNamesConflict", fmt.Sprintf("%q is already in use", inUse))
	} else {
		accepted.ShortNames = slices.Clone(requested.ShortNames)
	}
	one("KindConflict", requested.Kind, &accepted.Kind, taken.kinds)
	one("ListKindConflict", requested.ListKind, &accepted.ListKind, taken.kinds)
	accepted.Categories = slices.Clone(requested.Categories)

	setCondition(crd, condition)
	switch {
	case condition.Status == apiextensions.ConditionTrue:
		setCondition(crd, apiextensions.CustomResourceDefinitionCondition{
			Type: apiextensions.Established, Status: apiextensions.ConditionTrue,
			Reason: "InitialNamesAccepted", Message: "the initial names have been accepted",
		})
	case !apiextensions.IsCRDConditionTrue(crd, apiextensions.Established):
		setCondition(crd, apiextensions.CustomResourceDefinitionCondition{
			Type: apiextensions.Established, Status: apiextensions.ConditionFalse,
			Reason: "NotAccepted", Message: "not all names are accepted",
		})
	default: // served under the names that it had
	}
	approve(crd)
}

// approve sets the condition of definitions in groups that the Kubernetes
// community owns.
func approve(crd *apiextensions.CustomResourceDefinition) {
	if !apihelpers.IsProtectedCommunityGroup(crd.Spec.Group) {
		return
	}
	state, reason := apihelpers.GetAPIApprovalState(crd.Annotations)
	condition := apiextensions.CustomResourceDefinitionCondition{
		Type: apiextensions.KubernetesAPIApprovalPolicyConformant, Status: apiextensions.ConditionUnknown,
		Reason: "UnknownAnnotation", Message: reason,
	}
	switch state {
	case apihelpers.APIApproved:
		condition.Status, condition.Reason = apiextensions.ConditionTrue, "ApprovedAnnotation"
	case apihelpers.APIApprovalBypassed:
		condition.Status, condition.Reason = apiextensions.ConditionFalse, "UnapprovedAnnotation"
	case apihelpers.APIApprovalMissing:
		condition.Status, condition.Reason = apiextensions.ConditionFalse, "MissingAnnotation"
	case apihelpers.APIApprovalInvalid:
		condition.Status, condition.Reason = apiextensions.ConditionFalse, "InvalidAnnotation"
	}
	setCondition(crd, condition)
}

// reservation keeps the names of the definition that one request writes, or that
// another source is about to serve, from others: from the write on until it shows or
// the request has failed. Its fields belong to names.mu.
type reservation struct {
	of *names

	// held reports whether scope, definition and names are reserved.
	held  bool
	scope nameScope
	// definition is the name of a definition, or an owner whose names are not from one.
	definition string
	names      apiextensions.CustomResourceDefinitionNames
	// forSource is set if another source is about to serve under the names.
	forSource bool
	// given reports whether the definition was given others than it had.
	given bool
	// denied reports whether another definition may have been refused a name
	// because of this reservation.
	denied bool
}

type reservationKey struct{}

// reserve returns a context whose writes reserve names until release is called,
// which whoever calls reserve must do, whatever comes of the writes.
func (n *names) reserve(ctx context.Context) (context.Context, *reservation) {
	r := &reservation{of: n}
	return context.WithValue(ctx, reservationKey{}, r), r
}

// reservationFrom returns the reservation of a context, or nil.
func reservationFrom(ctx context.Context) *reservation {
	r, _ := ctx.Value(reservationKey{}).(*reservation)
	return r
}

// othersLocked adds to taken what is reserved in a scope for others than one definition, and
// notes who keeps it from a name that it wants: it is told when these are free.
func (n *names) othersLocked(taken claims, scope nameScope, definition string, wanted *apiextensions.CustomResourceDefinitionNames) {
	ours := newClaims()
	ours.add(wanted, definition)
	for r := range n.reserved[scope] {
		if r.definition == definition {
			continue
		}
		theirs := newClaims()
		theirs.add(&r.names, r.definition)
		if _, _, found := theirs.conflict(ours); found {
			r.denied = true
		}
		taken.add(&r.names, r.definition)
	}
}

// reserveLocked has r reserve names for a definition, in place of those it had.
// Without a reservation nothing is reserved.
func (n *names) reserveLocked(r *reservation, scope nameScope, definition string, names *apiextensions.CustomResourceDefinitionNames) {
	if r == nil {
		return
	}
	n.freeLocked(r)
	r.held, r.scope, r.definition, r.names = true, scope, definition, *names
	if n.reserved[scope] == nil {
		n.reserved[scope] = map[*reservation]struct{}{}
	}
	n.reserved[scope][r] = struct{}{}
}

func (n *names) freeLocked(r *reservation) {
	if !r.held {
		return
	}
	r.held = false
	delete(n.reserved[r.scope], r)
	if len(n.reserved[r.scope]) == 0 {
		delete(n.reserved, r.scope)
	}
}

// release ends the reservation. Definitions that did not get names because of it
// get them now, unless the names are in use by then.
func (r *reservation) release() {
	r.of.mu.Lock()
	r.of.freeLocked(r)
	scope, denied := r.scope, r.denied
	r.of.mu.Unlock()
	if denied {
		r.of.freed.Notify(scope)
	}
}
