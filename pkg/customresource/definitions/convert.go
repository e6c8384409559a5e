package definitions

import (
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Convert returns an object in another API version, and leaves in as it is. It may be
// called at the same time, and with any object that somebody wrote. What it does with
// metadata but labels and annotations is not taken over.
type Convert func(in *unstructured.Unstructured, to string) (*unstructured.Unstructured, error)

// ConvertHost is the host of the conversion webhooks by which upstream has objects of a
// Schema with Convert converted: nobody is called there.
const ConvertHost = "schema.internal.shardplane.io"

// convertedBy is the conversion of the schema with a hash, as upstream knows it.
func convertedBy(hash string) *apiextensionsv1.CustomResourceConversion {
	url := "https://" + ConvertHost + "/" + hash
	return &apiextensionsv1.CustomResourceConversion{
		Strategy: apiextensionsv1.WebhookConverter,
		Webhook: &apiextensionsv1.WebhookConversion{
			ClientConfig: &apiextensionsv1.WebhookClientConfig{URL: &url}, ConversionReviewVersions: []string{"v1"},
		},
	}
}

// Converts returns what converts by the path of a URL at ConvertHost, while the schema
// is in the table; nil for others.
func (t *Table) Converts(path string) Convert {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.byHash[strings.TrimPrefix(path, "/")]; s != nil {
		return s.Convert
	}
	return nil
}
