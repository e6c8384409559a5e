package webhooktransport

import (
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/klog/v2"

	"github.com/shardplane/shardplane/pkg/request"
)

// TestWithoutBodies: at the highest verbosity the log contains the calls, but neither requests nor responses.
func TestWithoutBodies(t *testing.T) {
	t.Parallel()
	h := newHostile(t)
	client, err := manager(t, tenants(t, "127.0.0.0/8")).HookClient(webhook.ClientConfig{URL: h.URL, CABundle: h.ca()})
	require.NoError(t, err)
	t.Cleanup(client.Client.CloseIdleConnections)
	review := &admissionv1.AdmissionReview{Request: &admissionv1.AdmissionRequest{Object: runtime.RawExtension{Raw: []byte(`{"token":"` + secret + `"}`)}}}
	logged := func(without bool) string {
		var log strings.Builder
		logger := funcr.New(func(prefix, args string) { log.WriteString(prefix + args + "\n") }, funcr.Options{Verbosity: 10})
		ctx := klog.NewContext(t.Context(), logger.WithName("a name").WithValues("a", "value"))
		if without {
			ctx = request.WithoutBodies(ctx)
		}
		require.NoError(t, client.Post().Body(review).Do(ctx).Into(&admissionv1.AdmissionReview{}))
		klog.FromContext(ctx).WithName("another").WithValues("b", "value").V(request.BodyLevel - 1).Info("less")
		return log.String()
	}
	require.Contains(t, logged(false), secret, "client-go logs bodies")
	quiet := logged(true)
	require.NotContains(t, quiet, secret)
	require.NotContains(t, quiet, "Body")
	require.Contains(t, quiet, `"a"="value" "b"="value"`)
}
