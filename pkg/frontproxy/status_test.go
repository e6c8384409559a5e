package frontproxy

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/shardplane/shardplane/pkg/authz"
)

// TestWarnings holds that kubectl is warned where it would not show the message.
func TestWarnings(t *testing.T) {
	warning := func(err *apierrors.StatusError) string {
		w := httptest.NewRecorder()
		writeStatus(w, err)
		return w.Header().Get("Warning")
	}
	for path, warned := range map[string]bool{
		"/api": true, "/apis/example.com/v1": true, "/openapi/v3": true, "/version": true, "/": true,
		"/apis/authentication.k8s.io/v1/selfsubjectreviews":      true,
		"/api/v1/namespaces/default/configmaps/x":                false,
		"/apis/authorization.k8s.io/v1/selfsubjectaccessreviews": false,
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/clusters/x"+path, nil)
		got := warning(forbidden(r, path))
		require.Equal(t, warned, got != "", "%s: %s", path, got)
		if warned {
			require.Equal(t, `299 - "`+authz.NotPermittedReason+`"`, got)
		}
	}
	require.Equal(t, `299 - "bad path"`, warning(apierrors.NewBadRequest("bad path")))
	require.Equal(t, `299 - "not in *"`, warning(statusError(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, 0, "not in *")))
	require.Empty(t, warning(apierrors.NewBadRequest("a\r\nX-Header: b")), "it is no header")
	require.Empty(t, warning(apierrors.NewMethodNotSupported(schema.GroupResource{Resource: "configmaps"}, "create")), "shown for resources")
	require.Empty(t, warning(apierrors.NewForbidden(schema.GroupResource{}, "", nil)), "for another reason")
	require.Empty(t, warning(apierrors.NewNotFound(schema.GroupResource{}, "x")))
}
