package definitions

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition"

	"github.com/shardplane/shardplane/pkg/customresource/customresourcetest"
)

// TestLimits verifies that a definition above the limits cannot be created, and that one from before them can be changed.
func TestLimits(t *testing.T) {
	t.Parallel()
	crd := customresourcetest.WidgetCRD(nil)
	for i := range 100 {
		crd.Spec.Versions[0].AdditionalPrinterColumns = append(crd.Spec.Versions[0].AdditionalPrinterColumns, apiextensionsv1.CustomResourceColumnDefinition{Name: fmt.Sprint(i), Type: "string", JSONPath: ".spec.color"})
	}
	crd.Status.StoredVersions, crd.ResourceVersion = []string{"v1"}, "1"
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&crd.Spec)
	stored := &apiextensions.CustomResourceDefinition{}
	require.NoError(t, apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(crd, stored, nil))
	strategy := definitionStrategy{customresourcedefinition.NewStrategy(apiextensionsserver.Scheme)}
	errs := strategy.Validate(t.Context(), stored)
	require.Len(t, errs, 1, "%v", errs)
	require.Equal(t, "spec.versions[0].additionalPrinterColumns", errs[0].Field)
	changed := stored.DeepCopy()
	changed.Labels = map[string]string{"a": "b"}
	changed.Spec.Names.Categories = []string{"all"}
	require.Empty(t, strategy.ValidateUpdate(t.Context(), changed, stored))
}
