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

// names accepts the names of a definition that no other API of the group has in the same logical cluster. It
// does so before the definition is written, so that a definition is established in one write.
type names struct {
	// sources has the sources that take precedence over definitions.
	sources *Sources
	builtIn func(ctx context.Context, group string) ([]apiextensions.CustomResourceDefinitionNames, error)
	objects *Index

	// mu guards the comparison with names in use together with the reservation.
	mu sync.Mutex
	// reserved are the names of definitions that are being written and are not in objects yet.
	reserved map[nameScope]map[*reservation]struct{}
	// freed is notified when a reservation that denied names to another definition ends.
	freed Listeners[nameScope]
}

// accept sets accepted names and conditions of a definition before it is written, and reserves the names for
// the reservation of ctx, if any. It rejects new definitions of a resource that another source serves in the
// logical cluster. Other errors mean that the names in use cannot be determined.
func (n *names) accept(ctx context.Context, obj runtime.Object) error {
	crd, ok := obj.(*apiextensions.CustomResourceDefinition)
	if !ok || !crd.DeletionTimestamp.IsZero() {
		return nil
	}
	cluster, err := request.ClusterNameFrom(ctx)
	if err != nil {
		return err
	}
	scope := nameScope{cluster: cluster, group: crd.Spec.Group}
	reserved, _ := ctx.Value(reservationKey{}).(*reservation)
	violations := nonStructural(&crd.Spec)

	// Reservations must be read before the other names: a stored definition was reserved until it was stored.
	// Reserving the requested names at once makes later requests see them.
	taken := claims{}
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
		setCondition(crd, newCondition(apiextensions.Established, apiextensions.ConditionFalse, "", ""))
	}
	accept(crd, taken)
	setNonStructural(crd, violations)

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

// namesUnknown is returned while the names in use cannot be determined; clients retry.
func namesUnknown(why string) error {
	return apierrors.NewTooManyRequests("the names in use cannot be determined yet, try again: "+why, 1)
}

// contestedKey identifies a write in which a definition releases its names and requests them again.
type contestedKey struct{}

func contested(ctx context.Context) context.Context {
	return context.WithValue(ctx, contestedKey{}, true)
}

func isContested(ctx context.Context) bool { return ctx.Value(contestedKey{}) != nil }

// lost reports whether another definition got a name of crd earlier, because another server of the shard
// accepted it at the same time. All servers agree on the order of revisions, and the later write yields.
func (n *names) lost(cluster logicalcluster.Name, crd *apiextensions.CustomResourceDefinition) bool {
	revision, err := strconv.ParseUint(crd.ResourceVersion, 10, 64)
	if err != nil {
		return false
	}
	others := claims{}
	n.objects.claims(others, nameScope{cluster: cluster, group: crd.Spec.Group}, crd.Name, revision)
	_, _, lost := others.conflict(&crd.Status.AcceptedNames)
	return lost
}

// lostToSource is lost for sources that serve, or are about to serve, an accepted name. The source wins on all
// servers, because it was requested before the definition was written.
func (n *names) lostToSource(ctx context.Context, cluster logicalcluster.Name, crd *apiextensions.CustomResourceDefinition) (bool, error) {
	others := claims{}
	n.mu.Lock() // reservations first, as in accept
	for r := range n.reserved[nameScope{cluster: cluster, group: crd.Spec.Group}] {
		if r.forSource {
			others.add(&r.names, r.definition)
		}
	}
	n.mu.Unlock()
	all, err := n.sources.beforeIndex(ctx, request.Cluster{Name: cluster}, n.sources.system.definitions, nil)
	if err != nil {
		return false, err
	}
	for _, d := range all {
		if d.Owner != "" && d.Schema.Resource.Group == crd.Spec.Group {
			others.add(internalNames(d.Schema.Names()), d.Owner)
		}
	}
	_, _, lost := others.conflict(&crd.Status.AcceptedNames)
	return lost, nil
}

// collect adds to taken the names of built-in resources and of all sources except one. It returns the
// definitions of these sources as stored, because an index may lag behind a client's own binding.
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

// accept accepts the free ones of the requested names, and sets the conditions.
func accept(crd *apiextensions.CustomResourceDefinition, taken claims) {
	requested, accepted := &crd.Spec.Names, &crd.Status.AcceptedNames
	condition := newCondition(apiextensions.NamesAccepted, apiextensions.ConditionTrue, "NoConflicts", "no conflicts found")
	conflict := func(reason, message string) {
		condition = newCondition(apiextensions.NamesAccepted, apiextensions.ConditionFalse, reason, message)
	}
	one := func(reason, want string, have *string, isKind bool) {
		if want != *have && taken.has(claim{isKind, want}) {
			conflict(reason, fmt.Sprintf("%q is already in use", want))
			return
		}
		*have = want
	}
	one("PluralConflict", requested.Plural, &accepted.Plural, false)
	one("SingularConflict", requested.Singular, &accepted.Singular, false)
	var inUse []string
	for _, short := range requested.ShortNames {
		if taken.has(claim{name: short}) && !slices.Contains(accepted.ShortNames, short) {
			inUse = append(inUse, short)
		}
	}
	if len(inUse) > 0 {
		conflict("ShortNamesConflict", fmt.Sprintf("%q is already in use", inUse))
	} else {
		accepted.ShortNames = slices.Clone(requested.ShortNames)
	}
	one("KindConflict", requested.Kind, &accepted.Kind, true)
	one("ListKindConflict", requested.ListKind, &accepted.ListKind, true)
	accepted.Categories = slices.Clone(requested.Categories)

	setCondition(crd, condition)
	switch {
	case condition.Status == apiextensions.ConditionTrue:
		setCondition(crd, newCondition(apiextensions.Established, apiextensions.ConditionTrue,
			"InitialNamesAccepted", "the initial names have been accepted"))
	case !apiextensions.IsCRDConditionTrue(crd, apiextensions.Established):
		setCondition(crd, newCondition(apiextensions.Established, apiextensions.ConditionFalse, "NotAccepted", "not all names are accepted"))
	default: // served under its previous names
	}
	approve(crd)
}

// approve sets the condition of definitions in protected groups of the Kubernetes community.
func approve(crd *apiextensions.CustomResourceDefinition) {
	if !apihelpers.IsProtectedCommunityGroup(crd.Spec.Group) {
		return
	}
	state, message := apihelpers.GetAPIApprovalState(crd.Annotations)
	status, reason := apiextensions.ConditionFalse, map[apihelpers.APIApprovalState]string{
		apihelpers.APIApproved: "ApprovedAnnotation", apihelpers.APIApprovalBypassed: "UnapprovedAnnotation",
		apihelpers.APIApprovalMissing: "MissingAnnotation", apihelpers.APIApprovalInvalid: "InvalidAnnotation",
	}[state]
	if state == apihelpers.APIApproved {
		status = apiextensions.ConditionTrue
	}
	setCondition(crd, newCondition(apiextensions.KubernetesAPIApprovalPolicyConformant, status, reason, message))
}

// reservation reserves names for a definition that a request writes, or for a source that is about to serve
// them. It ends when the index contains the definition, or when the request has failed. names.mu guards its
// fields.
type reservation struct {
	of *names

	scope nameScope
	// definition is the name of a definition, or the owner of a source.
	definition string
	names      apiextensions.CustomResourceDefinitionNames
	// forSource is set if a source is about to serve the names.
	forSource bool
	// given is set if the accepted names of the definition changed.
	given bool
	// denied is set if another definition may have been denied a name by this reservation.
	denied bool
}

type reservationKey struct{}

// othersLocked adds the names in a scope that are reserved for other definitions to taken. It sets denied
// of reservations that conflict with wanted names, so that release notifies definitions.
func (n *names) othersLocked(taken claims, scope nameScope, definition string, wanted *apiextensions.CustomResourceDefinitionNames) {
	for r := range n.reserved[scope] {
		if r.definition == definition {
			continue
		}
		others := claims{}
		others.add(&r.names, r.definition)
		if _, _, found := others.conflict(wanted); found {
			r.denied = true
		}
		taken.add(&r.names, r.definition)
	}
}

// reserveLocked replaces the names that r reserves. Without a reservation it does nothing.
func (n *names) reserveLocked(r *reservation, scope nameScope, definition string, names *apiextensions.CustomResourceDefinitionNames) {
	if r == nil {
		return
	}
	remove(n.reserved, r.scope, r)
	r.scope, r.definition, r.names = scope, definition, *names
	put(n.reserved, scope, r, struct{}{})
}

// release ends the reservation, and notifies definitions to which it denied names.
func (r *reservation) release() {
	r.of.mu.Lock()
	remove(r.of.reserved, r.scope, r)
	scope, denied := r.scope, r.denied
	r.of.mu.Unlock()
	if denied {
		r.of.freed.Notify(scope)
	}
}
