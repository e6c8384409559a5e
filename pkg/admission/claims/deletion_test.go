package claims_test

import (
	"cmp"
	"context"
	"errors"
	"testing"

	corev1alpha1 "github.com/kcp-dev/sdk/apis/core/v1alpha1"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/shardplane/shardplane/pkg/admission/claims"
	"github.com/shardplane/shardplane/pkg/request"
	storageclaims "github.com/shardplane/shardplane/pkg/storage/claims"
)

type lifetime struct {
	owners     []metav1.OwnerReference
	finalizers []string
	deleted    bool
}

func (l lifetime) object() runtime.Object {
	obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "default", OwnerReferences: l.owners, Finalizers: l.finalizers}}
	if l.deleted {
		obj.DeletionTimestamp = &metav1.Time{}
	}
	return obj
}

type authRequest struct{ by, verb, object string }

// update validates an update by sender and returns the authorization requests.
func update(ctx context.Context, resource schema.GroupResource, subresource string, before, after lifetime, sender user.Info, decision authorizer.Decision, failure error) (requests []authRequest, err error) {
	decides := func(by string) authorizer.AuthorizerFunc {
		return func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			requests = append(requests, authRequest{by, a.GetVerb(), a.GetAPIGroup() + "/" + a.GetResource() + "/" + a.GetNamespace() + "/" + a.GetName() + a.GetSubresource()})
			return decision, "", failure
		}
	}
	a := admission.NewAttributesRecord(after.object(), before.object(), corev1.SchemeGroupVersion.WithKind("ConfigMap"), "default", "x",
		resource.WithVersion("v1"), subresource, admission.Update, nil, false, sender)
	err = claims.NewClaims(claims.Config{Allows: everything, Through: decides("virtual workspace"), Bound: decides("policy")}).Validate(ctx, a, nil)
	return requests, err
}

// TestDeletionByUpdate checks that a sender that may not delete a claimed or bound object may not change the
// fields that decide about its deletion.
func TestDeletionByUpdate(t *testing.T) {
	owner, other := metav1.OwnerReference{APIVersion: "v1", Kind: "Secret", Name: "s", UID: "none"}, metav1.OwnerReference{APIVersion: "v1", Kind: "Secret", Name: "t", UID: "one"}
	blocking := owner
	blocking.BlockOwnerDeletion = new(bool)
	owned := lifetime{owners: []metav1.OwnerReference{owner}}
	claimed := through(t, "", true)
	bound := request.WithClusterName(t.Context(), consumer)
	own := request.WithThrough(bound, request.Through{Mount: request.APIExports, Provider: "provider", VirtualWorkspace: "e"})
	initializing := request.WithThrough(bound, request.Through{Mount: request.InitializingWorkspaces, Provider: "provider", VirtualWorkspace: "t"})
	logicalClusters := corev1alpha1.Resource("logicalclusters")
	set := storageclaims.NewSet(nil, logicalClusters, "", 1)
	set.Allow(consumer, nil, 1)
	tenant, system := &user.DefaultInfo{Name: "tenant"}, &user.DefaultInfo{Groups: []string{user.SystemPrivilegedGroup}}
	const claim, policy = "virtual workspace", "policy"
	for name, test := range map[string]struct {
		ctx           context.Context //nolint:containedctx // of one case
		before, after lifetime
		subresource   string
		resource      schema.GroupResource
		sender        user.Info
		// by is the authorizer that has to permit the deletion, if any.
		by string
	}{
		"owner added":                                {ctx: claimed, after: owned, by: claim},
		"second owner added":                         {ctx: claimed, before: owned, after: lifetime{owners: []metav1.OwnerReference{owner, other}}, by: claim},
		"one of two owners removed":                  {ctx: claimed, before: lifetime{owners: []metav1.OwnerReference{owner, other}}, after: owned, by: claim},
		"owner removed":                              {ctx: claimed, before: owned, by: claim},
		"blockOwnerDeletion changed":                 {ctx: claimed, before: owned, after: lifetime{owners: []metav1.OwnerReference{blocking}}, by: claim},
		"owner added by the status":                  {ctx: claimed, after: owned, subresource: "status", by: claim},
		"owner added by the system":                  {ctx: claimed, after: owned, sender: system, by: claim},
		"unchanged owner":                            {ctx: claimed, before: owned, after: owned},
		"empty list of owners":                       {ctx: claimed, after: lifetime{owners: []metav1.OwnerReference{}}},
		"finalizer added":                            {ctx: claimed, after: lifetime{finalizers: []string{"f"}}, by: claim},
		"finalizer removed":                          {ctx: claimed, before: lifetime{finalizers: []string{"f"}}, by: claim},
		"last finalizer of a deleted object removed": {ctx: claimed, before: lifetime{finalizers: []string{"f"}, deleted: true}, after: lifetime{deleted: true}, by: claim},
		"finalizers reordered":                       {ctx: claimed, before: lifetime{finalizers: []string{"f", "g"}}, after: lifetime{finalizers: []string{"g", "f"}}},
		"finalizer of a LogicalCluster":              {ctx: storageclaims.WithSet(bound, set), resource: logicalClusters, after: lifetime{finalizers: []string{"f"}}},
		"owner of a bound object":                    {ctx: bound, after: owned, by: policy},
		"owner added by an initializer":              {ctx: initializing, after: owned, by: policy},
		"owner of a bound object, by the system":     {ctx: bound, after: owned, sender: system},
		"owner of a bound object, by the provider":   {ctx: own, after: owned},
		"finalizer of a bound object":                {ctx: bound, after: lifetime{finalizers: []string{"f"}}},
		"another field of a bound object":            {ctx: bound, before: owned, after: owned},
	} {
		t.Run(name, func(t *testing.T) {
			send := func(decision authorizer.Decision, failure error) ([]authRequest, error) {
				resource, sender := cmp.Or(test.resource, configMaps), cmp.Or[user.Info](test.sender, tenant)
				return update(test.ctx, resource, test.subresource, test.before, test.after, sender, decision, failure)
			}
			requests, err := send(authorizer.DecisionNoOpinion, nil)
			if test.by == "" {
				require.NoError(t, err)
				require.Empty(t, requests)
				return
			}
			require.True(t, apierrors.IsForbidden(err), "%v", err)
			require.ErrorContains(t, err, "requires the verb delete")
			require.Equal(t, []authRequest{{test.by, "delete", "/configmaps/default/x"}}, requests)
			_, err = send(authorizer.DecisionAllow, nil)
			require.NoError(t, err)
			failure := errors.New("unknown")
			_, err = send(authorizer.DecisionNoOpinion, failure)
			require.ErrorIs(t, err, failure)
		})
	}
}

// TestNewObjectsWithOwners checks that a provider may set owners and finalizers of new objects.
func TestNewObjectsWithOwners(t *testing.T) {
	created := lifetime{owners: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Secret", Name: "s", UID: "none"}}, finalizers: []string{"f"}}
	a := admission.NewAttributesRecord(created.object(), nil, corev1.SchemeGroupVersion.WithKind("ConfigMap"), "default", "x",
		configMaps.WithVersion("v1"), "", admission.Create, nil, false, &user.DefaultInfo{Name: "tenant"})
	require.NoError(t, claims.NewClaims(claims.Config{Allows: everything}).Validate(through(t, "", true), a, nil))
}

func TestDeletionByTheClaimWithTheVerb(t *testing.T) {
	finalized := lifetime{finalizers: []string{"f"}}
	a := admission.NewAttributesRecord(finalized.object(), lifetime{}.object(), corev1.SchemeGroupVersion.WithKind("ConfigMap"), "default", "x",
		configMaps.WithVersion("v1"), "", admission.Update, nil, false, &user.DefaultInfo{Name: "tenant"})
	for selector, denied := range map[string]bool{"": false, "!for": false, "for=a": true} {
		parsed, err := labels.Parse(selector)
		require.NoError(t, err)
		err = claims.NewClaims(claims.Config{
			Allows: func(_ context.Context, _ schema.GroupResource, verb string) (storageclaims.Selection, error) {
				require.Equal(t, "delete", verb)
				return storageclaims.Select(parsed), nil
			},
			Through: func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
				return authorizer.DecisionAllow, "", nil
			},
		}).Validate(through(t, "", true), a, nil)
		require.Equal(t, denied, apierrors.IsForbidden(err), "%q: %v", selector, err)
	}
}
