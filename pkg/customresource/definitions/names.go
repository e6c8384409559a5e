package definitions

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"sync"

	"github.com/kcp-dev/logicalcluster/v3"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// nameScope is what names must be unique in.
type nameScope struct {
	cluster logicalcluster.Name
	group   string
}

// claims are the names in use in a scope, with who uses them.
type claims struct {
	resources, kinds users
}

// users are those of names.
type users map[string]string

func newClaims() claims { return claims{resources: users{}, kinds: users{}} }

// add notes that somebody uses names. Who does so first stays.
func (c claims) add(n *apiextensions.CustomResourceDefinitionNames, by string) {
	c.resources.add(by, n.Plural, n.Singular)
	c.resources.add(by, n.ShortNames...)
	c.kinds.add(by, n.Kind, n.ListKind)
}

func (u users) add(by string, names ...string) {
	for _, name := range names {
		if name != "" && !u.Has(name) {
			u[name] = by
		}
	}
}

// Has reports whether a name is in use.
func (u users) Has(name string) bool {
	_, used := u[name]
	return used
}

// conflict returns a name that is in use in both, with its user in u.
func (u users) conflict(other users) (name, by string, found bool) {
	for _, name := range slices.Sorted(maps.Keys(other)) {
		if by, used := u[name]; used {
			return name, by, true
		}
	}
	return "", "", false
}

// conflict returns a name that is in use in both, with its user in c.
func (c claims) conflict(other claims) (name, by string, found bool) {
	if name, by, found = c.resources.conflict(other.resources); found {
		return name, by, true
	}
	return c.kinds.conflict(other.kinds)
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

// internalNames are names as the storage of definitions has them, without categories,
// which need not be free.
func internalNames(n *apiextensionsv1.CustomResourceDefinitionNames) *apiextensions.CustomResourceDefinitionNames {
	return &apiextensions.CustomResourceDefinitionNames{
		Plural: n.Plural, Singular: n.Singular, ShortNames: n.ShortNames, Kind: n.Kind, ListKind: n.ListKind,
	}
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

// setCondition sets a condition, and its time where the status changes.
func setCondition(crd *apiextensions.CustomResourceDefinition, c apiextensions.CustomResourceDefinitionCondition) {
	c.LastTransitionTime = metav1.Now()
	for i := range crd.Status.Conditions {
		old := &crd.Status.Conditions[i]
		if old.Type != c.Type {
			continue
		}
		if old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
		crd.Status.Conditions = slices.Clone(crd.Status.Conditions)
		crd.Status.Conditions[i] = c
		return
	}
	crd.Status.Conditions = append(slices.Clip(crd.Status.Conditions), c)
}
