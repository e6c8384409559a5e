// Command diagrams draws each text diagram <name>.txt of a directory as <name>.svg. The drawings
// follow the color scheme of the reader.
package main

import (
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"

	"github.com/bep/goat"
)

const drawing = `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="Menlo,Consolas,monospace">
<style>
svg { color: #1f2328; background: #ffffff }
@media (prefers-color-scheme: dark) { svg { color: #e6edf3; background: #0d1117 } }
text { fill: currentColor; font-size: 13px }
</style>
%s</svg>
`

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: diagrams <directory>")
	}
	sources, err := filepath.Glob(filepath.Join(os.Args[1], "*.txt"))
	if err != nil {
		log.Fatal(err)
	}
	for _, source := range sources {
		if err := draw(source); err != nil {
			log.Fatal(err)
		}
	}
}

func draw(source string) error {
	f, err := os.Open(source)
	if err != nil {
		return err
	}
	defer f.Close()
	svg := goat.BuildSVG(f)
	content := fmt.Sprintf(drawing, svg.Width, svg.Height, svg.Body)
	return os.WriteFile(strings.TrimSuffix(source, ".txt")+".svg", []byte(content), 0o644)
}
