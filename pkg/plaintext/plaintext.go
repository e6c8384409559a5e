// Package plaintext escapes texts of tenants and other servers before they are printed to a
// terminal, so that they cannot control the terminal or imitate other output.
package plaintext

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Escape escapes everything that is not printable, e.g. line breaks, tabs, characters that reorder text, and invalid
// UTF-8.
func Escape(text string) string {
	if strings.IndexFunc(text, func(r rune) bool { return r == utf8.RuneError || !unicode.IsGraphic(r) }) < 0 {
		return text
	}
	var out strings.Builder
	for _, r := range text {
		if unicode.IsGraphic(r) {
			out.WriteRune(r)
			continue
		}
		quoted := strconv.QuoteRuneToASCII(r)
		out.WriteString(quoted[1 : len(quoted)-1])
	}
	return out.String()
}

// Fprintf is fmt.Fprintf with escaped arguments. The format is not escaped.
func Fprintf(w io.Writer, format string, args ...any) (int, error) {
	escaped := slices.Clone(args)
	for i, arg := range args {
		switch arg.(type) {
		case bool, int, int32, int64, uint, uint32, uint64, float64:
		default:
			escaped[i] = Escape(fmt.Sprint(arg))
		}
	}
	return fmt.Fprintf(w, format, escaped...)
}
