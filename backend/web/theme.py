"""The page's colours by the names that gradio's theme has for them."""

#: Light and dark.
COLOURS = {
    "body_text_color": ("#1b2430", "#e8edf4"),
    "body_text_color_subdued": ("#566273", "#a3afbf"),
    "block_info_text_color": ("#566273", "#a3afbf"),
    "input_placeholder_color": ("#566273", "#a3afbf"),
    "border_color_primary": ("#d5dbe3", "#354152"),
    "background_fill_primary": ("#ffffff", "#1a222e"),
    "background_fill_secondary": ("#f5f7fa", "#121924"),
    "error_text_color": ("#b3261e", "#ff8a80"),
    "link_text_color": ("#0058a3", "#8ecbff"),
    "button_primary_background_fill": ("#0058a3", "#0a66b7"),
    "button_primary_text_color": ("#ffffff", "#ffffff"),
}


def theme_values() -> dict[str, str]:
    """What gradio's theme is set to."""
    light = {name: colours[0] for name, colours in COLOURS.items()}
    return light | {f"{name}_dark": colours[1] for name, colours in COLOURS.items()}
