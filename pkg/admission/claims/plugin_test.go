package claims_test

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/shardplane/shardplane/pkg/admission/claims"
	"github.com/shardplane/shardplane/pkg/request"
	storageclaims "github.com/shardplane/shardplane/pkg/storage/claims"
)

const (
	consumer = logicalcluster.Name("consumer")
	shown    = "claimed.internal.apis.kcp.io/abc"
)

var configMaps = corev1.Resource("configmaps")

// write is a write of a ConfigMap, by its labels; nil means no object.
type write struct {
	before, after map[string]string
	subresource   string
	user          user.Info
	// resource of the claim; optional.
	resource schema.GroupResource
}

func object(l map[string]string) runtime.Object {
	if l == nil {
		return nil
	}
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "default", Labels: maps.Clone(l)}}
}

// send runs the plugin and returns the labels to be stored.
func (w write) send(ctx context.Context, allows claims.Allows) (map[string]string, error) {
	operation := admission.Update
	switch {
	case w.before == nil:
		operation = admission.Create
	case w.after == nil:
		operation = admission.Delete
	}
	a := admission.NewAttributesRecord(object(w.after), object(w.before), corev1.SchemeGroupVersion.WithKind("ConfigMap"), "default", "x",
		cmp.Or(w.resource, configMaps).WithVersion("v1"), w.subresource, operation, nil, false, w.user)
	p := claims.NewClaims(claims.Config{Allows: allows})
	if err := p.Admit(ctx, a, nil); err != nil {
		return nil, err
	}
	if err := p.Validate(ctx, a, nil); err != nil {
		return nil, err
	}
	if written, ok := a.GetObject().(*corev1.ConfigMap); ok {
		return written.Labels, nil
	}
	return nil, nil
}

// through returns the context of requests by a claim with the selector, if not "", or by a rejected claim.
func through(t *testing.T, selector string, accepted bool) context.Context {
	t.Helper()
	set := storageclaims.NewSet(nil, configMaps, "", 1)
	if accepted {
		parsed, err := labels.Parse(selector)
		require.NoError(t, err)
		set.Allow(consumer, parsed, 1)
	}
	return storageclaims.WithSet(request.WithClusterName(t.Context(), consumer), set)
}

func everything(context.Context, schema.GroupResource, string) (storageclaims.Selection, error) {
	return storageclaims.Select(nil), nil
}

// TestSelectors checks that a provider can write only objects that match the selector, before and after the
// write.
func TestSelectors(t *testing.T) {
	mine, others, none := map[string]string{"for": "a", "x": "y"}, map[string]string{"for": "c"}, map[string]string{}
	for name, test := range map[string]struct {
		write

		selector string
		want     map[string]string
		denied   string
	}{
		"create: the label is added":                     {write: write{after: map[string]string{"x": "y"}}, selector: "for=a", want: mine},
		"create: all labels are added":                   {write: write{after: none}, selector: "for=a,x=y", want: mine},
		"create: has the label":                          {write: write{after: mine}, selector: "for=a", want: mine},
		"create: another value":                          {write: write{after: others}, selector: "for=a", denied: `for=a, but the object has the value "c": set the required value`},
		"create: matches an expression":                  {write: write{after: mine}, selector: "for in (a,b)", want: mine},
		"create: an expression adds nothing":             {write: write{after: none}, selector: "for in (a,b)", denied: `match "for in (a,b)"`},
		"create: does not match an expression":           {write: write{after: others}, selector: "for in (a,b)", denied: `match "for in (a,b)"`},
		"create: matches by absence":                     {write: write{after: none}, selector: "!for", want: none},
		"create: a label and an expression":              {write: write{after: none}, selector: "for=a,x in (y)", denied: "match"},
		"create: for all objects":                        {write: write{after: others}, want: others},
		"update: a removed label is restored":            {write: write{before: mine, after: map[string]string{"x": "y"}}, selector: "for=a", want: mine},
		"update: to another value":                       {write: write{before: mine, after: others}, selector: "for=a", denied: "for=a"},
		"update: no longer matches an expression":        {write: write{before: mine, after: others}, selector: "for in (a,b)", denied: "set labels that match"},
		"update: still matches an expression":            {write: write{before: mine, after: map[string]string{"for": "b"}}, selector: "for in (a,b)", want: map[string]string{"for": "b"}},
		"update: adds a label that must be absent":       {write: write{before: none, after: mine}, selector: "!for", denied: "match"},
		"update: adds the label to an unselected object": {write: write{before: others, after: mine}, selector: "for=a", denied: "match"},
		"update: of an unselected object":                {write: write{before: others, after: others}, selector: "for in (a,b)", denied: "match"},
		"status: no longer matches":                      {write: write{before: mine, after: others, subresource: "status"}, selector: "for in (a)", denied: "match"},
		"status: a removed label is restored":            {write: write{before: mine, after: map[string]string{"x": "y"}, subresource: "status"}, selector: "for=a", want: mine},
		"delete":                                         {write: write{before: mine}, selector: "for=a"},
		"delete: of an unselected object":                {write: write{before: others}, selector: "for=a", denied: "match"},
		"a resource that is stored as the claimed one":   {write: write{after: others, resource: eventsv1.Resource("events")}, selector: "for=a", denied: "for=a, but the object has"},
		"create: by the system":                          {write: write{after: others, user: &user.DefaultInfo{Groups: []string{user.SystemPrivilegedGroup}}}, selector: "for=a", denied: "for=a"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := test.send(through(t, test.selector, true), everything)
			if test.denied != "" {
				require.True(t, apierrors.IsForbidden(err), "%v", err)
				require.ErrorContains(t, err, test.denied)
				return
			}
			require.NoError(t, err)
			require.Equal(t, test.want, got)
		})
	}
}

// TestRejected checks that nothing can be written after a claim has been rejected.
func TestRejected(t *testing.T) {
	for name, w := range map[string]write{
		"create": {after: map[string]string{}},
		"update": {before: map[string]string{}, after: map[string]string{}},
		"delete": {before: map[string]string{}},
	} {
		_, err := w.send(through(t, "", false), everything)
		require.True(t, apierrors.IsForbidden(err), "%s: %v", name, err)
		require.ErrorContains(t, err, "no accepted permission claim covers it")
	}
}

// TestCreateNeedsTheVerb checks that patches and updates that create need the verb create too.
func TestCreateNeedsTheVerb(t *testing.T) {
	calls := 0
	unless := func(allowed bool, err error) claims.Allows {
		return func(_ context.Context, resource schema.GroupResource, verb string) (selected storageclaims.Selection, _ error) {
			calls++
			require.Equal(t, configMaps, resource)
			require.Equal(t, "create", verb)
			if allowed {
				selected = storageclaims.Select(nil)
			}
			return selected, err
		}
	}
	ctx := through(t, "", true)
	creates, updates := write{after: map[string]string{}}, write{before: map[string]string{}, after: map[string]string{}}
	_, err := creates.send(ctx, unless(false, nil))
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	require.ErrorContains(t, err, "no accepted permission claim has the verb create")
	unknown := errors.New("unavailable")
	_, err = creates.send(ctx, unless(false, unknown))
	require.ErrorIs(t, err, unknown)
	_, err = creates.send(ctx, unless(true, nil))
	require.NoError(t, err)
	require.Equal(t, 3, calls)
	_, err = updates.send(ctx, unless(false, nil))
	require.NoError(t, err, "an update must not require the verb create")
	_, err = creates.send(request.WithClusterName(t.Context(), consumer), unless(false, nil))
	require.NoError(t, err, "a request without a claim must not require the verb create")
	require.Equal(t, 3, calls)
}

func TestSelectorOfTheVerb(t *testing.T) {
	allows := func(context.Context, schema.GroupResource, string) (storageclaims.Selection, error) {
		return storageclaims.Select(labels.SelectorFromSet(labels.Set{"for": "b"})), nil
	}
	_, err := write{after: map[string]string{"for": "a"}}.send(through(t, "", true), allows)
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	_, err = write{after: map[string]string{"for": "b"}}.send(through(t, "", true), allows)
	require.NoError(t, err)
}

// TestShownLabels checks that no write changes claim labels.
func TestShownLabels(t *testing.T) {
	forged := map[string]string{shown: "forged", "claimed.internal.apis.kcp.io/": "", "mine": "kept", "internal.claimed": "kept"}
	kept := map[string]string{"mine": "kept", "internal.claimed": "kept"}
	users := map[string]user.Info{
		"a tenant": &user.DefaultInfo{Name: "tenant"}, "an administrator": &user.DefaultInfo{Groups: []string{request.GroupAdmin}},
		"the system": &user.DefaultInfo{Groups: []string{user.SystemPrivilegedGroup}},
	}
	for name, u := range users {
		for way, w := range map[string]write{
			"create": {after: forged}, "update": {before: kept, after: forged}, "status": {before: kept, after: forged, subresource: "status"},
			// kubectl certificate approve, and clients that write finalizers of namespaces, send the object
			// as they read it.
			"approval": {before: kept, after: forged, subresource: "approval"}, "finalize": {before: kept, after: forged, subresource: "finalize"},
		} {
			w.user = u
			got, err := w.send(request.WithClusterName(t.Context(), consumer), everything)
			require.NoError(t, err, "%s: %s", name, way)
			require.Equal(t, kept, got, "%s: %s", name, way)
			got, err = w.send(through(t, "mine=kept", true), everything)
			require.NoError(t, err, "%s, by a claim: %s", name, way)
			require.Equal(t, kept, got, "%s, by a claim: %s", name, way)
		}
	}
	read := map[string]string{shown: "real", "mine": "kept"}
	for _, sent := range []map[string]string{read, forged, {"mine": "kept", "internal.claimed": "kept"}, {}} {
		want := map[string]string{shown: "real"}
		for key, value := range sent {
			if kept[key] != "" {
				want[key] = value
			}
		}
		got, err := write{before: read, after: sent}.send(request.WithClusterName(t.Context(), consumer), everything)
		require.NoError(t, err)
		require.Equal(t, want, got)
		// Selectors match the stored labels.
		_, err = write{before: read, after: sent}.send(through(t, "!"+shown, true), everything)
		require.NoError(t, err)
	}
	// A selector with a claim label matches nothing.
	_, err := write{after: map[string]string{shown: "forged"}}.send(through(t, shown+" in (forged)", true), everything)
	require.True(t, apierrors.IsForbidden(err), "%v", err)
}
