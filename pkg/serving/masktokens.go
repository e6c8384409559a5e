package serving

import (
	"net/http"
	"strings"
)

// MaskTokens is the filter that takes bearer tokens out of URLs. No server here
// takes a token from a URL, but some clients put one there, and URLs are in logs,
// audit events and what is forwarded.
func MaskTokens() Filter {
	return Filter{"token mask", "access_token in a query is no credential, and is not for logs", func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.URL.RawQuery, accessToken) {
				r = withMaskedTokens(r)
			}
			next.ServeHTTP(w, r)
		})
	}}
}

// accessToken is how a query with a token begins, by RFC 6750.
const accessToken = "access_token="

func withMaskedTokens(r *http.Request) *http.Request {
	parameters := strings.Split(r.URL.RawQuery, "&")
	for i, parameter := range parameters {
		if strings.HasPrefix(parameter, accessToken) {
			parameters[i] = accessToken + "masked"
		}
	}
	masked, url := r.WithContext(r.Context()), *r.URL
	url.RawQuery = strings.Join(parameters, "&")
	masked.URL = &url
	if path, _, found := strings.Cut(r.RequestURI, "?"); found {
		masked.RequestURI = path + "?" + url.RawQuery
	}
	return masked
}
