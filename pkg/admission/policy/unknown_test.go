package policy

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/kcp-dev/logicalcluster/v3"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/policy/generic"
	"k8s.io/apiserver/pkg/admission/plugin/policy/matching"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/client-go/rest"

	"github.com/shardplane/shardplane/pkg/admission/policy/remoteparams"
	"github.com/shardplane/shardplane/pkg/client"
)

// TestUnknownKinds checks that only a definite response means that a kind of parameters does not exist, and
// no error, e.g. of a server that has just started.
func TestUnknownKinds(t *testing.T) {
	t.Parallel()
	status := http.StatusServiceUnavailable
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
	t.Cleanup(server.Close)
	factory, err := client.NewFactory(&rest.Config{Host: server.URL})
	require.NoError(t, err)
	t.Cleanup(factory.CloseIdleConnections)
	p := NewParams(t.Context(), factory, nil)
	get := func() error {
		_, err := p.get("a", "validating", corev1.SchemeGroupVersion.WithKind("Rule"), "")
		return err
	}
	require.ErrorIs(t, get(), errUnknown, "parameters must be unknown before the server is running")
	p.ctx = t.Context()
	for status = range map[int]bool{http.StatusServiceUnavailable: true, http.StatusInternalServerError: true, http.StatusForbidden: true} {
		require.ErrorIs(t, get(), errUnknown, status)
	}
	status = http.StatusNotFound
	err = get()
	require.NotErrorIs(t, err, errUnknown)
	require.ErrorContains(t, err, "failed to find resource referenced by paramKind")
}

// denying denies writes as upstream does if it cannot evaluate a policy.
type denying struct {
	err      error
	evaluate func(hook validating.PolicyHook)
}

func (d denying) Start(context.Context) error { return nil }

func (d denying) Dispatch(_ context.Context, _ admission.Attributes, _ admission.ObjectInterfaces, hooks []validating.PolicyHook) error {
	for _, hook := range hooks {
		d.evaluate(hook)
	}
	return d.err
}

func unread(t *testing.T) *param {
	read := func(context.Context, remoteparams.Location, string, url.Values) ([]byte, error) {
		return nil, context.DeadlineExceeded
	}
	none := remoteparams.NewParamCache(t.Context(), read)
	return &param{reads: none.Known(remoteparams.Location{Shard: "s", Cluster: "c"}, &meta.RESTMapping{Resource: corev1.SchemeGroupVersion.WithResource("configmaps"), GroupVersionKind: corev1.SchemeGroupVersion.WithKind("ConfigMap"), Scope: meta.RESTScopeNamespace})}
}

// TestUnknownParametersAreNotFinal checks that a write that needs unknown parameters can be retried,
// regardless of the failure policy.
func TestUnknownParametersAreNotFinal(t *testing.T) {
	t.Parallel()
	denied := apierrors.NewInvalid(schema.GroupKind{Kind: "ConfigMap"}, "x", nil)
	synced := func(hook validating.PolicyHook) { hook.ParamInformer.Informer().HasSynced() }
	for name, tc := range map[string]struct {
		param    *param
		evaluate func(hook validating.PolicyHook)
		err      error
		later    bool
	}{
		"unknown":            {unknownParam(), synced, denied, true},
		"unread":             {unread(t), func(hook validating.PolicyHook) { _, _ = hook.ParamInformer.Lister().Get("x") }, denied, true},
		"unread and ignored": {unread(t), func(hook validating.PolicyHook) { _, _ = hook.ParamInformer.Lister().Get("x") }, nil, false},
		"not matched":        {unknownParam(), func(validating.PolicyHook) {}, denied, false},
		"ignored":            {unknownParam(), synced, nil, false},
		"known":              {unread(t), synced, denied, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &plugin[*validating.Policy, *validating.PolicyBinding, validating.Validator]{}
			p.kind.dispatcher = func(logicalcluster.Name, *matching.Matcher) (generic.Dispatcher[validating.PolicyHook], error) {
				return denying{tc.err, tc.evaluate}, nil
			}
			s := &set[*validating.Policy, *validating.PolicyBinding, validating.Validator]{params: true, hooks: []validating.PolicyHook{{ParamInformer: tc.param}}}
			err := p.dispatchTo(t.Context(), s, "c", nil, admission.NewObjectInterfacesFromScheme(runtime.NewScheme()))
			if !tc.later {
				require.Equal(t, tc.err == nil, err == nil)
				require.Equal(t, tc.err != nil, apierrors.IsInvalid(err))
				return
			}
			require.True(t, apierrors.IsServiceUnavailable(err), "%v", err)
			seconds, retries := apierrors.SuggestsClientDelay(err)
			require.True(t, retries)
			require.Positive(t, seconds)
		})
	}
}
