package definitions

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition"

	"github.com/shardplane/shardplane/pkg/customresource/customresourcetest"
)

// TestLimits verifies that a definition above the limits cannot be created, but an existing one can be
// changed.
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

// TestStoredColumns verifies that printer columns of a definition stored before the limits existed cannot
// exhaust the memory.
func TestStoredColumns(t *testing.T) {
	t.Parallel()
	crd := customresourcetest.WidgetCRD(nil)
	columns := []apiextensionsv1.CustomResourceColumnDefinition{
		{Name: "Union", Type: "string", JSONPath: ".spec" + strings.Repeat("[0,0]", 10)},
		{Name: "Descent", Type: "string", JSONPath: strings.Repeat("..x", 10)},
	}
	for i := range 3000 {
		columns = append(columns, apiextensionsv1.CustomResourceColumnDefinition{Name: fmt.Sprint(i), Type: "string", JSONPath: ".spec.color"})
	}
	crd.Spec.Versions[0].AdditionalPrinterColumns = columns
	schema, err := NewSchema(&crd.Spec, &crd.Spec.Names)
	require.NoError(t, err)
	served := schema.Version("v1").AdditionalPrinterColumns
	require.Len(t, served, 32)
	require.Equal(t, columns[2:34], served)
	require.Len(t, schema.TerminatingCRD().Spec.Versions[0].AdditionalPrinterColumns, 32)
	require.Len(t, crd.Spec.Versions[0].AdditionalPrinterColumns, len(columns), "the definition is shared")
}
