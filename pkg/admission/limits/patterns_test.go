package limits

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// TestLargePatterns checks that an authentication configuration cannot have large regular expressions,
// because they are matched with tokens of unauthenticated clients.
func TestLargePatterns(t *testing.T) {
	t.Parallel()
	configuration := func(username, valid string) *unstructured.Unstructured {
		u := &unstructured.Unstructured{}
		require.NoError(t, yaml.Unmarshal(fmt.Appendf(nil, `{spec: {jwt: [{claimMappings: {username: {expression: %q}, extra: [{key: a, valueExpression: %q}]}}]}}`, username, valid), &u.Object))
		return u
	}
	check := func(object, old runtime.Object) error { return validKind(writeBy(configs, "", object, old, nil)) }
	large := "claims.sub.find('" + strings.Repeat("a{0,1000}", 100) + "')"
	small := "claims.sub.find('^[a-z]{1,63}')"
	require.NoError(t, check(configuration(small, small), nil))
	for field, bad := range map[string]*unstructured.Unstructured{
		"spec.jwt[0].claimMappings.username.expression":      configuration(large, small),
		"spec.jwt[0].claimMappings.extra[0].valueExpression": configuration(small, large),
	} {
		err := check(bad, nil)
		require.True(t, apierrors.IsInvalid(err), "%v", err)
		require.ErrorContains(t, err, field)
		require.ErrorContains(t, err, "at most 2500 allowed")
		require.NoError(t, check(bad, bad), "an unchanged large pattern must be accepted")
	}
}
